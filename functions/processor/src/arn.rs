//! The ARNs of SNS topics and EventBridge event buses.

/// The ARN of a topic or of an event bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arn {
    text: String,
    service: Service,
    region: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// A topic of SNS.
    Topic,
    /// An event bus of EventBridge.
    EventBus,
}

impl Arn {
    /// `None` if the text is no ARN, or that of something else, such as a subscription.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let parts: Vec<_> = text.split(':').collect();
        let ["arn", partition, service, region, account, resource] = *parts else { return None };
        let (service, name) = match service {
            "sns" => (Service::Topic, resource),
            "events" => (Service::EventBus, resource.strip_prefix("event-bus/")?),
            _ => return None,
        };
        let is_whole = [partition, region, account, name].iter().all(|part| !part.is_empty());
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_./:".contains(c);
        let is_named = text.chars().all(is_name);
        (is_whole && is_named).then(|| Self {
            text: text.to_owned(),
            service,
            region: region.to_owned(),
        })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) const fn service(&self) -> Service {
        self.service
    }

    /// The region of the topic or the event bus. It may differ from the table's region.
    pub(crate) fn region(&self) -> &str {
        &self.region
    }

    /// True for a topic that keeps the order of its messages, and drops repeated ones.
    pub(crate) fn is_fifo(&self) -> bool {
        self.service == Service::Topic && self.text.ends_with(".fifo")
    }
}
