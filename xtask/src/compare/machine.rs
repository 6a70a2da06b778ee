//! The machine and the tools of a comparison.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::install;
use crate::workspace;

/// The facts that a reader needs to judge the figures.
pub(crate) struct Machine {
    date: String,
    commit: String,
    cpu: String,
    cores: usize,
    memory_gib: u64,
    system: String,
    rust: String,
    python: String,
    node: String,
    redis: String,
}

impl Machine {
    /// Reads this machine's facts; the Redis server reports its own version.
    pub(crate) fn look(redis: &str) -> Self {
        let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let memory = field(&file("/proc/meminfo"), "MemTotal:");
        let kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or_default();
        let os = field(&file("/etc/os-release"), "PRETTY_NAME=");
        // Without the suffix of a distribution or a provider.
        let kernel = said(Command::new("uname").arg("-r"));
        let kernel = kernel.split('-').next().unwrap_or_default();
        let mut git = Command::new("git");
        git.args(["describe", "--always", "--dirty"]).current_dir(workspace::root());
        Self {
            date: said(Command::new("date").args(["-u", "+%F"])),
            commit: said(&mut git),
            cpu: field(&file("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: kib.div_ceil(1024 * 1024),
            system: format!("{}, Linux {kernel}", os.trim_matches('"')),
            rust: said(Command::new("rustc").arg("--version")),
            python: said(Command::new(install::zae_python(install::ZAE_NEWEST)).arg("--version")),
            node: said(Command::new("node").arg("--version")),
            redis: redis.to_owned(),
        }
    }

    pub(crate) fn markdown(&self) -> String {
        let Self { date, commit, cpu, cores, memory_gib, system, .. } = self;
        let Self { rust, python, node, redis, .. } = self;
        format!(
            "{date}, commit {commit}: {cores} cores ({cpu}), {memory_gib} GiB, {system}; {rust}, {python}, Node.js {node}, Redis {redis}."
        )
    }

    pub(crate) fn json(&self) -> Value {
        let Self { date, commit, cpu, cores, memory_gib, system, .. } = self;
        let Self { rust, python, node, redis, .. } = self;
        json!({
            "date": date, "commit": commit, "cpu": cpu, "cores": cores, "memory_gib": memory_gib,
            "system": system, "rust": rust, "python": python, "node": node, "redis": redis,
        })
    }
}

/// The rest of the first line that begins with `name`.
fn field(text: &str, name: &str) -> String {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    rest.trim_start_matches([' ', '\t', ':']).trim().to_owned()
}

/// The output of a command; empty if the command does not exist.
fn said(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_linux_writes_them() {
        let cpu = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nmodel name\t: B\n";
        assert_eq!(field(cpu, "model name"), "A CPU @ 2 GHz");
        assert_eq!(field("MemTotal:       24000000 kB\n", "MemTotal:"), "24000000 kB");
        assert_eq!(field("", "MemTotal:"), "");
    }
}
