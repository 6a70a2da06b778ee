//! Connects to the table that the command line and the AWS environment name.

use std::time::Duration;

use aws_config::ecs::EcsCredentialsProvider;
use aws_config::environment::region::EnvironmentVariableRegionProvider;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::{ProfileFileCredentialsProvider, ProfileFileRegionProvider};
use aws_config::provider_config::ProviderConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{ConfigLoader, SdkConfig};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{ProvideCredentials, Region};
use aws_sdk_dynamodb::types::TableDescription;
use sluicegate::dynamo::DynamoTable;
use sluicegate::dynamo::{ConfigStore, Reader};
use sluicegate::{DynamoStore, Limiter, OnUnavailable};
use sluicegate_core::keys::COMPOSITE_SCHEMA;
use sluicegate_local::is_loopback;
use sluicegate_processor::{chain, https_client};

use crate::error::CliError;
use crate::options::Options;

/// The region for signatures if the endpoint is on loopback and no region is set.
const LOOPBACK_REGION: &str = "us-east-1";
/// The variable that names the endpoint of streams alone.
const STREAMS_ENDPOINT: &str = "AWS_ENDPOINT_URL_DYNAMODB_STREAMS";

/// A connection to one table.
pub(crate) struct Connection {
    config: SdkConfig,
    table: String,
    /// The endpoint of the stream, if it is known here. The SDK asks only its own variable for it.
    streams_at: Option<String>,
    timeout: Duration,
}

impl Connection {
    /// The AWS configuration, for other clients of the table.
    pub(crate) const fn config(&self) -> &SdkConfig {
        &self.config
    }

    /// The AWS configuration for other services, which are not at the endpoint that the command line
    /// names for the table.
    pub(crate) async fn config_of_others(&self, options: &Options) -> SdkConfig {
        let mut loader = loader(options, self.config.region().cloned());
        if let Some(credentials) = self.config.credentials_provider() {
            loader = loader.credentials_provider(credentials);
        }
        loader.load().await
    }

    /// The name of the table.
    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// A client with the SDK's own retries, for calls that may be repeated.
    pub(crate) fn client(&self) -> Client {
        Client::new(&self.config)
    }

    /// The table as DynamoDB describes it.
    pub(crate) async fn describe_table(&self) -> Result<TableDescription, CliError> {
        let described = self.client().describe_table().table_name(&self.table).send().await;
        let described =
            described.map_err(|error| CliError::of_sdk("DescribeTable", &self.table, &error))?;
        described.table.ok_or_else(|| CliError::empty("DescribeTable", &self.table))
    }

    /// A client of the table's stream.
    pub(crate) fn streams(&self) -> aws_sdk_dynamodbstreams::Client {
        let mut config = aws_sdk_dynamodbstreams::config::Builder::from(&self.config);
        config.set_endpoint_url(
            self.streams_at.clone().or_else(|| self.config.endpoint_url().map(str::to_owned)),
        );
        aws_sdk_dynamodbstreams::Client::from_conf(config.build())
    }

    /// A limiter on the table. If another producer also writes to the table, and not all of it was
    /// converted, there may be buckets of one item per limit.
    pub(crate) async fn limiter(&self) -> Result<Limiter, CliError> {
        let limiter = Limiter::builder(DynamoStore::with_table(self.dynamo_table().await?))
            .deadline(self.timeout)
            .on_unavailable(OnUnavailable::Deny);
        Ok(limiter.build())
    }

    /// The table for a limiter.
    pub(crate) async fn dynamo_table(&self) -> Result<DynamoTable, CliError> {
        let version = self.configured().schema_version().await?;
        let is_converted = version.schema >= Some(COMPOSITE_SCHEMA);
        let mut table = DynamoTable::new(&self.client(), &self.table);
        if version.other_schema.is_some() && !is_converted {
            table = table.converting_legacy();
        }
        Ok(table)
    }

    /// The entities and limits that are stored in the table.
    pub(crate) fn configured(&self) -> ConfigStore {
        ConfigStore::new(self.client(), &self.table)
    }

    /// A reader of the table's items.
    pub(crate) fn reader(&self) -> Reader {
        Reader::new(self.client(), &self.table)
    }
}

impl Options {
    /// Checks the table's name and the endpoint.
    ///
    /// # Errors
    /// [`CliError::BadInput`].
    pub(crate) fn check(&self) -> Result<(), CliError> {
        check_table_name(&self.table())?;
        self.check_endpoint()
    }

    /// Connects to the table as the options and the AWS environment say. Nothing is sent yet.
    ///
    /// # Errors
    /// [`CliError::BadInput`] if the endpoint from the environment is not a URL;
    /// [`CliError::Store`] if there is no region or there are no credentials, with advice.
    pub(crate) async fn connect(&self) -> Result<Connection, CliError> {
        self.check()?;
        let table = self.table();
        let region = tokio::time::timeout(self.timeout, region(self)).await;
        let region = region.ok().flatten().ok_or_else(CliError::no_region)?;
        let mut loader = loader(self, Some(region));
        if let Some(url) = &self.endpoint_url {
            loader = loader.endpoint_url(url);
        }
        let config = loader.load().await;
        let of = self.profile.as_ref().map(|profile| format!("profile {profile}: "));
        let of = of.unwrap_or_default();
        let checked = tokio::time::timeout(self.timeout, check_credentials(&config, &of)).await;
        checked.map_err(|_| CliError::no_credentials("the provider did not answer"))??;
        let has_own = std::env::var_os(STREAMS_ENDPOINT).is_some_and(|url| !url.is_empty());
        let streams_at = self.endpoint().filter(|_| self.endpoint_url.is_some() || !has_own);
        Ok(Connection { config, table, streams_at, timeout: self.timeout })
    }
}

/// The environment and the profile that the command line names.
fn loader(options: &Options, region: Option<Region>) -> ConfigLoader {
    // Of a whole operation, including the SDK's repetitions and the answer's body.
    let timeouts = TimeoutConfig::builder().operation_timeout(options.timeout).build();
    let loader = aws_config::defaults(aws_config::BehaviorVersion::latest())
        .http_client(https_client())
        .timeout_config(timeouts)
        .region(region.clone());
    let Some(profile) = &options.profile else { return loader };
    // As with the AWS tools: the environment's credentials come first in the SDK's chain, and a
    // profile that somebody names must not be passed over.
    let setup = ProviderConfig::default().with_http_client(https_client()).with_region(region);
    let of_profile =
        ProfileFileCredentialsProvider::builder().configure(&setup).profile_name(profile).build();
    let of_task = EcsCredentialsProvider::builder().configure(&setup).build();
    let of_machine = ImdsCredentialsProvider::builder().configure(&setup).build();
    let credentials = CredentialsProviderChain::first_try("Profile", of_profile)
        .or_else("EcsContainer", of_task)
        .or_else("Ec2InstanceMetadata", of_machine);
    loader.profile_name(profile).credentials_provider(credentials)
}

/// # Errors
/// [`CliError::BadInput`] if DynamoDB can have no table of this name.
pub(crate) fn check_table_name(name: &str) -> Result<(), CliError> {
    let advice = "a name has 3 to 255 letters, digits, '_', '-' and '.'";
    match is_table_name(name) {
        true => Ok(()),
        false => Err(CliError::BadInput(format!("{name:?} is not a table name: {advice}"))),
    }
}

/// True if DynamoDB could have a table of this name; it accepts an ARN as a name, too.
fn is_table_name(name: &str) -> bool {
    if name.starts_with("arn:") {
        return true;
    }
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    (3..=255).contains(&name.len()) && name.chars().all(is_allowed)
}

/// The region of the command line, the environment, the profile or the machine, in this order. An
/// engine on loopback needs none, and the machine is not asked for it.
async fn region(options: &Options) -> Option<Region> {
    // An empty one is as none, also in the environment.
    let named = options.region.clone().filter(|name| !name.is_empty()).map(Region::new);
    let mut profile = ProfileFileRegionProvider::builder();
    if let Some(name) = &options.profile {
        profile = profile.profile_name(name);
    }
    let chain = RegionProviderChain::first_try(named)
        .or_else(EnvironmentVariableRegionProvider::new())
        .or_else(profile.build());
    if options.endpoint().is_some_and(|url| is_loopback(&url)) {
        chain.or_else(Region::from_static(LOOPBACK_REGION)).region().await
    } else {
        let http = ProviderConfig::default().with_http_client(https_client());
        chain.or_else(ImdsRegionProvider::builder().configure(&http).build()).region().await
    }
}

/// Asks for credentials once, so that their absence gets an error of its own and not that of a
/// failed call.
async fn check_credentials(config: &SdkConfig, of: &str) -> Result<(), CliError> {
    let Some(provider) = config.credentials_provider() else {
        return Err(CliError::no_credentials("none are configured"));
    };
    match provider.provide_credentials().await {
        Ok(_) => Ok(()),
        Err(error) => Err(CliError::no_credentials(&format!("{of}{}", chain(&error)))),
    }
}
