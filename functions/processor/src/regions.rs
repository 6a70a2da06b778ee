//! Looks whether a table has replicas in other regions.
//!
//! Each replica has a stream of its own, with its own sequence numbers. So processors in two
//! regions count each change twice, unless one region is the home region.

use std::collections::BTreeSet;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Region;
use aws_sdk_dynamodb::types::TableDescription;

use crate::settings::Settings;
use crate::write_error::explain;

/// At its start, the processor waits at most this long for the table's description.
const DESCRIBE_TIME_MAX: Duration = Duration::from_secs(1);

/// The regions of a table's replicas, without the region that described it.
#[must_use]
pub fn other_regions(described: &TableDescription, here: Option<&str>) -> BTreeSet<String> {
    let names = described.replicas().iter().filter_map(|replica| replica.region_name());
    names.filter(|name| Some(*name) != here).map(str::to_owned).collect()
}

/// A warning if the settings do not fit the regions that the table is in; one line. It is left out
/// if the table cannot be described within a second.
pub async fn region_warning(client: &Client, settings: &Settings) -> Option<String> {
    let describe = client.describe_table().table_name(&settings.table).send();
    let described = match tokio::time::timeout(DESCRIBE_TIME_MAX, describe).await {
        Ok(Ok(output)) => output.table?,
        Ok(Err(error)) => {
            tracing::debug!(reason = explain(&error), "the table's replicas are not known");
            return None;
        }
        Err(_) => return None,
    };
    let here = client.config().region().map(Region::as_ref);
    warning(settings.home_region.as_deref(), here, &other_regions(&described, here))
}

fn warning(home: Option<&str>, here: Option<&str>, others: &BTreeSet<String>) -> Option<String> {
    let list = others.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    match home {
        None if others.is_empty() => None,
        None => Some(format!(
            "the table has replicas in {list}: a processor there counts every change again; set the \
             same HOME_REGION for all of them"
        )),
        Some(home) if Some(home) == here || others.contains(home) => None,
        Some(home) => Some(format!(
            "HOME_REGION is {home}, where this table has no replica: nobody counts its usage"
        )),
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::types::ReplicaDescription;

    use super::*;

    #[test]
    fn a_warning_comes_if_usage_is_counted_twice_or_never() {
        let replica = |name| ReplicaDescription::builder().region_name(name).build();
        let described = TableDescription::builder()
            .replicas(replica("us-east-1"))
            .replicas(replica("eu-west-1"))
            .build();
        let here = Some("us-east-1");
        let others = other_regions(&described, here);
        assert_eq!(others, BTreeSet::from(["eu-west-1".to_owned()]));
        let alone = BTreeSet::new();
        assert_eq!(warning(None, here, &alone), None);
        assert_eq!(warning(Some("us-east-1"), here, &alone), None);
        assert_eq!(warning(Some("us-east-1"), here, &others), None);
        assert_eq!(warning(Some("eu-west-1"), here, &others), None);
        let twice = warning(None, here, &others).unwrap();
        assert!(twice.contains("replicas in eu-west-1"), "{twice}");
        for others in [&alone, &others] {
            let never = warning(Some("ap-south-1"), here, others).unwrap();
            assert!(never.contains("nobody counts"), "{never}");
        }
    }
}
