//! Keeps the AWS SDK from reading the process's environment for each request.
//!
//! It does so in threads of the runtime. Before glibc 2.41, a program in another language that changes
//! its environment at that moment crashes, because `getenv` and `setenv` do not know of each other.

use aws_runtime::user_agent::{ApiMetadata, AwsUserAgent};
use aws_sdk_dynamodb::config::interceptors::{
    BeforeSerializationInterceptorContextRef, BeforeTransmitInterceptorContextMut,
};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_types::os_shim_internal::Env;

/// With this header the SDK does not look if it runs in a Lambda function.
const TRACE_ID: &str = "x-amzn-trace-id";

/// An interceptor for a client of the SDK: what it needs of the environment is read now. Credentials
/// are read by the first request, and again when they expire; the SDK's own repetition of a request
/// reads the trace. In a Lambda function, whose runtime sets the trace of each
/// invocation, it does nothing.
#[derive(Debug)]
pub struct ReadOnce {
    user_agent: Option<AwsUserAgent>,
}

impl ReadOnce {
    /// For a client of this service, whose SDK has this version.
    #[must_use]
    pub fn new(service: &'static str, version: &'static str) -> Self {
        let is_lambda = std::env::var_os("AWS_LAMBDA_FUNCTION_NAME").is_some();
        let user_agent =
            || AwsUserAgent::new_from_environment(Env::real(), ApiMetadata::new(service, version));
        Self { user_agent: (!is_lambda).then(user_agent) }
    }
}

#[aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint]
impl Intercept for ReadOnce {
    fn name(&self) -> &'static str {
        "ReadOnce"
    }

    fn read_before_execution(
        &self,
        _context: &BeforeSerializationInterceptorContextRef<'_>,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(user_agent) = &self.user_agent {
            config.interceptor_state().store_put(user_agent.clone());
        }
        Ok(())
    }

    fn modify_before_retry_loop(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if self.user_agent.is_some() {
            context.request_mut().headers_mut().insert(TRACE_ID, "none");
        }
        Ok(())
    }

    fn modify_before_transmit(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if self.user_agent.is_some() {
            context.request_mut().headers_mut().remove(TRACE_ID);
        }
        Ok(())
    }
}
