//! `cargo xtask examples`: runs the examples in every command's `--help`, without changes.
//!
//! They run one after the other in an empty folder beside a copy of the sample events, on a
//! `sluicegate local` of their own. A command may find nothing (1) or be refused tokens (3); it
//! must not report bad input or an unusable table. A command that runs until it is interrupted is
//! interrupted after it had time to begin.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::session::{self, Server};
use crate::{process, workspace};

/// The time given to a command that does not end by itself.
const WHILE: Duration = Duration::from_secs(3);

pub(crate) fn run() -> Result<()> {
    process::run(process::cargo().args(["build", "--locked", "--bin", "sluicegate"]))?;
    let folder = std::env::temp_dir().join(format!("sluicegate-examples-{}", std::process::id()));
    fs::create_dir_all(&folder).context("cannot make a folder")?;
    let result = all(&folder);
    fs::remove_dir_all(&folder).ok();
    result
}

fn all(folder: &Path) -> Result<()> {
    let events = workspace::root().join("tests/events");
    let mut copy = Command::new("cp");
    fs::create_dir_all(folder.join("tests")).context("cannot make a folder")?;
    process::run(copy.arg("-r").arg(&events).arg(folder.join("tests")))?;
    fs::copy(events.join("04-midnight.json"), folder.join("event.json")).context("an event")?;

    fs::write(folder.join("sluicegate.yaml"), "limits: [rpm=100/min]\n").context("a file")?;
    let prices = r#"{"currency": "USD", "models": {}}"#;
    fs::write(folder.join("prices.json"), prices).context("a file")?;

    let path =
        format!("{}:{}", session::bin_dir().display(), std::env::var("PATH").unwrap_or_default());
    let mut variables = vec![("PATH".to_owned(), path)];
    let mut local = Server::start("sluicegate local --port 0", folder, &variables)?;
    let lines = local.wait_until(|lines| lines.iter().any(|line| line.contains("Ctrl-C stops")))?;
    let exported = lines.iter().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
    variables.extend(exported.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let url = variable(&variables, "AWS_ENDPOINT_URL")?;

    let mut examples = Vec::new();
    for command in commands(&[], folder, &variables)? {
        examples.extend(examples_of(&command, folder, &variables)?);
    }
    examples.sort();
    examples.dedup();
    ensure!(examples.len() > 40, "only {} examples", examples.len());
    // Commands that delete come last, and tables after their contents.
    examples.sort_by_key(|line| (line.contains(" table delete"), line.contains(" delete ")));
    for line in &examples {
        let line = line.replace("http://127.0.0.1:8000", &url);
        one(&line, folder, &variables).with_context(|| format!("`{line}`"))?;
        println!("as --help says: {line}");
    }
    println!("{} examples", examples.len());
    Ok(())
}

fn one(line: &str, folder: &Path, variables: &[(String, String)]) -> Result<()> {
    let is_endless = ["sluicegate local", "sluicegate process", "sluicegate serve"]
        .iter()
        .any(|command| line.starts_with(command))
        && !line.split_whitespace().any(|word| ["--once", "--check", "--schema"].contains(&word));
    if line.starts_with("sluicegate demo") && !line.contains("--headless") {
        // It needs a terminal; its view is tested where it is drawn.
        return Ok(());
    }
    if is_endless {
        let free = session::free_port()?;
        let (command, comment) = line.split_once('#').unwrap_or((line, ""));
        let port = match command {
            _ if line.contains("--port") => String::new(),
            _ if line.starts_with("sluicegate local") => format!(" --port {free}"),
            _ if line.starts_with("sluicegate serve") => format!(" --listen 127.0.0.1:{free}"),
            _ => String::new(),
        };
        let server = Server::start(&format!("exec {command}{port} #{comment}"), folder, variables)?;
        std::thread::sleep(WHILE);
        let status = server.stop()?;
        ensure!(status.success(), "it ended with {status} after Ctrl-C");
        return Ok(());
    }
    let said = session::run(&[line.to_owned()], folder, variables, Duration::ZERO)?;
    // There is no S3 here: that destination cannot be written, and nothing else is wrong.
    let not_written = if line.contains("s3://") { Some(6) } else { None };
    match said.first() {
        Some(said) if [0, 1, 3].contains(&said.code) => Ok(()),
        Some(said) if Some(said.code) == not_written && said.output.contains("s3://") => Ok(()),
        Some(said) => bail!("it exited with {}:\n{}", said.code, said.output),
        None => bail!("it said nothing"),
    }
}

/// The commands below these words, each with its subcommands.
fn commands(
    words: &[String],
    folder: &Path,
    variables: &[(String, String)],
) -> Result<Vec<Vec<String>>> {
    let help = help(words, folder, variables)?;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| line.starts_with("  "));
    let names = listed.filter(|line| !line.starts_with("   "));
    let mut all = if words.is_empty() { Vec::new() } else { vec![words.to_vec()] };
    for name in names.filter_map(|line| line.split_whitespace().next()) {
        if name != "help" {
            all.extend(commands(&[words, &[name.to_owned()]].concat(), folder, variables)?);
        }
    }
    Ok(all)
}

fn examples_of(
    words: &[String],
    folder: &Path,
    variables: &[(String, String)],
) -> Result<Vec<String>> {
    let help = help(words, folder, variables)?;
    let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
    let lines = lines.take_while(|line| line.starts_with("  "));
    let examples: Vec<_> = lines.map(|line| line.trim().to_owned()).collect();
    ensure!(!examples.is_empty(), "`sluicegate {} --help` has no example", words.join(" "));
    Ok(examples)
}

fn help(words: &[String], folder: &Path, variables: &[(String, String)]) -> Result<String> {
    let line = format!("sluicegate {} --help", words.join(" "));
    let output = session::shell(&line, folder, variables).output().context("bash")?;
    ensure!(output.status.success(), "`{line}` failed");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn variable(variables: &[(String, String)], name: &str) -> Result<String> {
    let found = variables.iter().find(|(found, _)| found == name);
    found.map(|(_, value)| value.clone()).with_context(|| format!("`local` did not export {name}"))
}
