//! A destination, with the client that reaches it.

use std::time::Duration;

use aws_config::SdkConfig;

#[cfg(feature = "aws-alerts")]
use crate::aws_delivery::AwsDelivery;
use crate::cloud_event::Event;
use crate::destination::{Destination, Target};
use crate::webhook::Webhook;

/// Sends alerts to one destination.
#[derive(Debug)]
pub(crate) struct Sender {
    destination: Destination,
    route: Route,
}

#[derive(Debug)]
enum Route {
    Webhook(Box<Webhook>),
    #[cfg(feature = "aws-alerts")]
    Aws(AwsDelivery),
}

impl Sender {
    pub(crate) fn new(destination: Destination, config: &SdkConfig) -> Self {
        #[cfg(not(feature = "aws-alerts"))]
        let _ = config;
        let route = match destination.target.clone() {
            Target::Webhook(webhook) => Route::Webhook(webhook),
            #[cfg(feature = "aws-alerts")]
            Target::Aws(arn) => Route::Aws(AwsDelivery::new(arn, config)),
        };
        Self { destination, route }
    }

    /// Sends an event once. The reason of a failure is one line.
    pub(crate) async fn send(&self, event: Event) -> Result<(), String> {
        match &self.route {
            Route::Webhook(webhook) => webhook.send(event).await,
            #[cfg(feature = "aws-alerts")]
            Route::Aws(delivery) => delivery.send(event).await,
        }
    }

    /// The pause after this number of failed deliveries, which is at least one.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        self.destination.pause(failures)
    }
}
