//! The help of every command.

use crate::support::{command, finish};

/// The commands under these words.
fn subcommands(words: &[&str]) -> Vec<String> {
    let help = finish(command().args(words).arg("--help"));
    let lines = help.text(0).lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| line.starts_with("  "));
    let names = names.filter(|line| !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn every_command() -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for name in subcommands(&[]).into_iter().filter(|name| name != "help") {
        for inner in subcommands(&[&name]).into_iter().filter(|name| name != "help") {
            all.push(vec![name.clone(), inner]);
        }
        all.push(vec![name]);
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_has_an_example_and_the_top_its_exit_codes() {
    let all = every_command();
    assert!(all.len() > 20, "{all:?}");
    let documented = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let documented = std::fs::read_to_string(documented).unwrap();
    for words in all {
        let said = finish(command().args(&words).arg("--help"));
        let help = said.text(0);
        let line = format!("sluicegate {} ", words.join(" "));
        let is_documented = documented.lines().any(|found| format!("{found} ").starts_with(&line));
        assert!(is_documented, "{words:?} is not in docs/cli.md");
        let example = format!("\n  sluicegate {}", words.join(" "));
        let examples = help.split("\nExamples:").nth(1).unwrap_or_default();
        assert!(examples.contains(&example), "{words:?}: {help}");
        if words.len() == 1 {
            assert!(examples.contains("\nExit codes: 0 "), "{words:?}: {help}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_and_manual_pages_name_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = finish(command().args(["completions", shell]));
        assert!(script.text(0).contains("quarantine") && script.out.contains("acquire"));
    }
    assert_eq!(finish(command().args(["completions", "cmd.exe"])).code, 2);

    assert_eq!(finish(command().args(["man", "acquire"])).code, 2);
    assert!(finish(command().arg("man")).text(0).starts_with(".ie"));
    let folder = tempfile::tempdir().unwrap();
    finish(command().args(["man", "--folder"]).arg(folder.path())).text(0);
    let page = std::fs::read_to_string(folder.path().join("sluicegate-acquire.1")).unwrap();
    assert!(page.contains("Examples"), "{page}");
    let file = folder.path().join("sluicegate-acquire.1");
    finish(command().args(["man", "--folder"]).arg(file)).error(6);
}
