//! `sluicegate demo` as a script sees it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn demo(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.arg("demo").args(args).stdin(Stdio::null()).output().unwrap()
}

fn summary(seed: &str) -> (Value, Vec<u8>) {
    let output = demo(&["--headless", "--seconds", "12", "--seed", seed]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    (serde_json::from_slice(&output.stdout).unwrap(), output.stdout)
}

#[test]
fn a_seed_is_one_run_to_the_last_decision() {
    let (first, text) = summary("1");
    assert_eq!(summary("1").1, text);
    let (other, _) = summary("2");
    assert_ne!(first["decisions_sha256"], other["decisions_sha256"]);
    assert_eq!(first["decisions_sha256"].as_str().unwrap().len(), 64);

    assert_eq!(first["usage_is_exact"], true);
    let tenants = first["tenants"].as_array().unwrap();
    let greedy = tenants.iter().find(|tenant| tenant["name"] == "greedy-inc").unwrap();
    let count = |tenant: &Value, name: &str| tenant[name].as_u64().unwrap();
    assert!(count(greedy, "refused") > count(greedy, "admitted"), "{greedy}");
    let refused = |tenant: &&Value| count(tenant, "refused") > 0;
    assert!(tenants.iter().filter(refused).count() < tenants.len(), "one pays for itself alone");
    assert!(tenants.iter().all(|tenant| count(tenant, "admitted") > 0));
    assert!(first["write_units"]["metering"].as_f64().unwrap() > 0.0);
}

#[test]
fn with_leases_writes_are_counted_beside_what_is_admitted_and_usage_is_exact() {
    let output = demo(&["--headless", "--leased", "--seconds", "12"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["usage_is_exact"], true, "{summary}");
    let rate = |name: &str| summary["leased"][name].as_f64().unwrap();
    assert!(rate("writes_per_s") > 0.0, "{summary}");
    assert!(rate("admitted_per_s") > 1.0, "{summary}");
}

#[test]
fn without_a_terminal_it_says_what_to_type() {
    let output = demo(&[]);
    assert_eq!(output.status.code(), Some(2));
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.lines().count() == 1 && line.contains("sluicegate demo --headless"), "{line}");
}
