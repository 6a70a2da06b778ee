//! Envoy's rate limit service, `envoy.service.ratelimit.v3`.

mod calls;
mod groups;
pub(crate) mod rules;
mod service;
mod status;

pub(crate) use rules::Rules;
pub(crate) use service::Service;
