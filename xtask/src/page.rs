//! Runs the console blocks of a page, without changes.
//!
//! Every line that starts with `$ ` is run, all of a block in one shell. It must exit with 0, or
//! with N if it ends in `# exit code N`, and print the lines that follow it on the page, in their
//! order. Numbers, and the lengths of gaps and rules, may differ; `...` stands for any part of a
//! line, or for any lines. A block that is marked `server` runs in the background from there on.
//! One that is marked `elsewhere` is not run (it needs an AWS account, or is a stage of its own).

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::session::{self, Said, Server};
use crate::workspace;

/// The blocks of one page.
#[derive(Debug)]
pub(crate) struct Page {
    blocks: Vec<Block>,
}

impl Page {
    /// Reads the page at `path`, below the root of the workspace, and replaces words that depend on
    /// the run, such as a free port.
    pub(crate) fn read(path: &str, replaced: &[(&str, String)]) -> Result<Self> {
        let file = workspace::root().join(Path::new(path));
        let mut text = fs::read_to_string(&file).with_context(|| path.to_owned())?;
        for (word, by) in replaced {
            ensure!(text.contains(word), "{path} does not say {word}");
            text = text.replace(word, by);
        }
        let blocks = blocks(&text).with_context(|| path.to_owned())?;
        Ok(Self { blocks })
    }

    /// Runs all blocks in the root of the workspace. Calls `before` before each block, and pauses
    /// after each command.
    pub(crate) fn type_all(
        &self,
        variables: &[(String, String)],
        pause: Duration,
        before: impl Fn(),
    ) -> Result<()> {
        let mut servers = Vec::new();
        for block in &self.blocks {
            let commands: Vec<_> = block.steps.iter().map(|step| step.command.clone()).collect();
            match block.kind {
                Kind::Elsewhere => continue,
                Kind::Server => servers.push(start(block, variables)?),
                Kind::Typed => {
                    before();
                    let said = session::run(&commands, workspace::root(), variables, pause)?;
                    for (step, said) in block.steps.iter().zip(&said) {
                        check(step, said)?;
                    }
                }
            }
            for command in commands {
                println!("typed: {command}");
            }
        }
        for server in servers {
            let status = server.stop()?;
            ensure!(status.success(), "a server of the page ended with {status} after Ctrl-C");
        }
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Block {
    kind: Kind,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Typed,
    Server,
    Elsewhere,
}

/// A command and its output on the page.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    command: String,
    expected: Vec<String>,
    code: i32,
}

fn start(block: &Block, variables: &[(String, String)]) -> Result<Server> {
    let [step] = block.steps.as_slice() else { bail!("a server block has one command") };
    let mut server = Server::start(&step.command, workspace::root(), variables)?;
    server
        .wait_until(|lines| missing(&step.expected, &lines.join("\n")).is_none())
        .with_context(|| format!("`{}`", step.command))?;
    Ok(server)
}

fn check(step: &Step, said: &Said) -> Result<()> {
    let Step { command, expected, code } = step;
    ensure!(
        said.code == *code,
        "`{command}` exited with {} and not with {code}:\n{}",
        said.code,
        said.output
    );
    if let Some(line) = missing(expected, &said.output) {
        bail!("`{command}` does not print `{line}`, as the page says:\n{}", said.output);
    }
    Ok(())
}

/// The first expected line that is missing or out of order.
fn missing<'a>(expected: &'a [String], output: &str) -> Option<&'a str> {
    let mut lines = output.lines().map(essence);
    let is_missing = |line: &&String| {
        let line = essence(line);
        !["", "..."].contains(&line.as_str()) && !lines.any(|found| is_like(&found, &line))
    };
    expected.iter().find(is_missing).map(String::as_str)
}

/// True if a line is the expected one, in which `...` stands for any part.
fn is_like(line: &str, expected: &str) -> bool {
    let Some((begin, after)) = expected.split_once("...") else { return line == expected };
    let (middle, end) = after.rsplit_once("...").unwrap_or(("", after));
    let Some(mut rest) = line.strip_prefix(begin) else { return false };
    for part in middle.split("...") {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(end)
}

/// A line without the parts that differ between runs: numbers, and the lengths of gaps, rules and
/// bars.
fn essence(line: &str) -> String {
    let mut essence = String::new();
    for character in line.trim().chars() {
        let character = if character.is_ascii_digit() { '0' } else { character };
        let is_run = ['0', ' ', '─', '█'].contains(&character);
        if !(is_run && essence.ends_with(character)) {
            essence.push(character);
        }
    }
    // The tip of a bar may be a fraction of zero.
    essence.retain(|character| !('▉'..='▏').contains(&character));
    essence.replace("0.0", "0").trim_end().to_owned()
}

fn blocks(readme: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut rest = readme;
    while let Some((_, after)) = rest.split_once("\n```console") {
        let (info, after) = after.split_once('\n').context("a block that does not begin")?;
        let (body, after) = after.split_once("\n```").context("a block that does not end")?;
        let kind = match info.trim() {
            "" => Kind::Typed,
            "server" => Kind::Server,
            "elsewhere" => Kind::Elsewhere,
            other => bail!("console {other}: one of server, elsewhere or nothing"),
        };
        blocks.push(Block { kind, steps: steps(body)? });
        rest = after;
    }
    Ok(blocks)
}

fn steps(body: &str) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = body.lines();
    while let Some(line) = lines.next() {
        if let Some(first) = line.strip_prefix("$ ") {
            let mut command = first.to_owned();
            while let Some(begun) = command.strip_suffix('\\') {
                command = format!("{begun}{}", lines.next().unwrap_or_default().trim_start());
            }
            let code = command.split_once("# exit code ").map(|(_, code)| code.trim().parse());
            let code = code.transpose().context("an exit code")?.unwrap_or(0);
            steps.push(Step { command, expected: Vec::new(), code });
        } else {
            let step = steps.last_mut().context("output before any command")?;
            step.expected.push(line.to_owned());
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_as_they_stand() {
        let readme = "x\n```console server\n$ serve \\\n    --all\nup\n```\ny\n```rust\n$ no\n```\n```console\n$ a\n1\n$ b   # exit code 3\n```\n";
        let step = |command: &str, expected: &[&str], code| Step {
            command: command.to_owned(),
            expected: expected.iter().map(|line| (*line).to_owned()).collect(),
            code,
        };
        let expected = [
            Block { kind: Kind::Server, steps: vec![step("serve --all", &["up"], 0)] },
            Block {
                kind: Kind::Typed,
                steps: vec![step("a", &["1"], 0), step("b   # exit code 3", &[], 3)],
            },
        ];
        assert_eq!(blocks(readme).unwrap(), expected);
        assert!(blocks("\n```console somewhere\n$ a\n```").is_err());
        assert!(blocks("\n```console\nno command\n```").is_err());
    }

    #[test]
    fn output_may_differ_in_numbers_and_widths_only() {
        let expected =
            ["granted in 3 ms".to_owned(), "...".to_owned(), " a   99.05 ███▍".to_owned()];
        assert_eq!(missing(&expected, "x\ngranted in 12 ms\ny\na 1 █\n"), None);
        assert_eq!(missing(&expected, "granted in 12 ms\nb 1 █\n"), Some(" a   99.05 ███▍"));
        assert_eq!(missing(&expected, "a 1 █\ngranted in 12 ms\n"), Some(" a   99.05 ███▍"));
        assert_eq!(missing(&expected, "refused in 12 ms\n"), Some("granted in 3 ms"));
        let begun = ["error: denied: ...".to_owned()];
        assert_eq!(missing(&begun, "error: denied: all of it"), None);
        assert_eq!(missing(&begun, "error: refused"), Some("error: denied: ..."));
    }

    #[test]
    fn ellipsis_stands_for_any_part_of_a_line() {
        for (expected, line) in [
            ("a ... c ... e", "a b c d e"),
            ("... ready", "7:M 23 Nov * ready"),
            ("at ...", "at 15:07"),
            ("test x ... ok", "test x ... ok"),
        ] {
            assert!(is_like(line, expected), "{expected}: {line}");
        }
        for (expected, line) in [
            ("a ... c", "a b c d"),
            ("a ... c", "b a b c"),
            ("a ... c ... e", "a b d e"),
            ("ab...bc", "abc"),
            ("a", "a b"),
        ] {
            assert!(!is_like(line, expected), "{expected}: {line}");
        }
    }
}
