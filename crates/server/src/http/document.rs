//! The OpenAPI document: its head, and what is the same for many operations.

use utoipa::OpenApi as _;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, RefOr, Response, ResponseBuilder};

use crate::config::Role;

/// The name of the bearer token in the document.
const TOKEN: &str = "token";

#[derive(utoipa::OpenApi)]
#[openapi(info(
    title = "Sluicegate",
    description = "Rate limits and budgets: acquire tokens of several limits at once, correct them when the actual use is known."
))]
struct Document;

/// The document without operations.
pub(super) fn empty() -> OpenApi {
    let mut document = Document::openapi();
    let token = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A caller's token. A server without callers needs none."));
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(TOKEN, SecurityScheme::Http(token.build()));
    document
}

/// Adds to each operation that it needs a token with this role, and how it is refused without.
pub(super) fn need_token(document: &mut OpenApi, role: Role) {
    for operation in operations(document) {
        let role = role.name();
        operation.security =
            Some(vec![SecurityRequirement::default(), SecurityRequirement::new(TOKEN, [role])]);
        add(operation, "401", "No token, or an unknown one");
        add(operation, "403", &format!("The token's roles do not include {role}"));
    }
}

/// Adds to each operation the refusals of bad input and of an overloaded server. Every store answers an
/// acquire, and DynamoDB alone answers the others.
pub(super) fn may_be_refused(document: &mut OpenApi, role: Role) {
    for operation in operations(document) {
        add(operation, "400", "Bad input");
        if operation.request_body.is_some() {
            add(operation, "413", "The body is too large");
            add(operation, "415", "The body is not application/json");
        }
        add(operation, "500", "The server cannot use its store: its log has the reason");
        if role != Role::Acquire {
            add(
                operation,
                "501",
                "The store has no entities, stored limits or usage: use DynamoDB",
            );
        }
        add(operation, "503", "The store or the server is overloaded or does not answer");
    }
}

fn operations(document: &mut OpenApi) -> impl Iterator<Item = &mut Operation> {
    document.paths.paths.values_mut().flat_map(|path| {
        [&mut path.get, &mut path.post, &mut path.put, &mut path.delete].into_iter().flatten()
    })
}

/// Adds an answer, unless the operation describes one of its own with this status.
fn add(operation: &mut Operation, status: &str, description: &str) {
    let problem = || -> RefOr<Response> {
        let content = ContentBuilder::new().build();
        let response = ResponseBuilder::new().description(description);
        RefOr::T(response.content("application/problem+json", content).build())
    };
    operation.responses.responses.entry(status.to_owned()).or_insert_with(problem);
}
