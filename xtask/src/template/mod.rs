//! `cargo xtask template`: checks that the SAM template is valid, and that it has the properties
//! that exact counting and least privilege depend on.
//!
//! The linters know the rules of CloudFormation; only [`properties`] knows the needs of this
//! project.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::engines::{self, Engine};
use crate::{process, workspace};

mod expectations;
mod properties;
mod property;
mod yaml;

pub(crate) fn run() -> Result<()> {
    engines::ensure(&[Engine::CfnLint, Engine::Sam])?;
    lint()?;
    check_properties()?;
    println!("template.yaml: {} properties hold", properties::count());
    Ok(())
}

fn lint() -> Result<()> {
    let template = workspace::template();
    process::run(offline(Engine::CfnLint).arg(&template))?;
    process::run(
        offline(Engine::Sam).args(["validate", "--lint", "--template-file"]).arg(&template),
    )
}

fn check_properties() -> Result<()> {
    let path = workspace::template();
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let violations = properties::violations(&yaml::parse(&text)?);
    if !violations.is_empty() {
        bail!("template.yaml:\n  {}", violations.join("\n  "));
    }
    Ok(())
}

/// A tool of AWS that neither asks for an account nor sends reports.
fn offline(engine: Engine) -> Command {
    let mut command = Command::new(engine.program());
    command.env("AWS_DEFAULT_REGION", "us-east-1").env("SAM_CLI_TELEMETRY", "0");
    // SAM's settings file goes beside the tool instead of into the user's home.
    command.env("__SAM_CLI_APP_DIR", workspace::engines_dir().join("sam-home"));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_of_this_repository_has_the_properties() {
        check_properties().unwrap();
    }
}
