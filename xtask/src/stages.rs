//! A sequence of named stages whose times are printed, the failed one included.

use std::time::Instant;

use anyhow::{Context, Result};

/// Runs stages and keeps their times in seconds.
pub(crate) struct Stages {
    task: &'static str,
    done: Vec<(&'static str, f64)>,
}

impl Stages {
    pub(crate) fn new(task: &'static str) -> Self {
        Self { task, done: Vec::new() }
    }

    /// Runs one stage. If it fails, the times so far are printed and the caller should not run the
    /// rest.
    pub(crate) fn run(
        &mut self,
        name: &'static str,
        stage: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        let result =
            stage().with_context(|| format!("{} stopped in the stage `{name}`", self.task));
        self.done.push((name, start.elapsed().as_secs_f64()));
        if result.is_err() {
            self.print();
        }
        result
    }

    /// Prints the time of each stage.
    pub(crate) fn print(&self) {
        for (name, seconds) in &self.done {
            println!("{}: {name:<12} {seconds:7.1} s", self.task);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_stage_is_timed_and_named() {
        let mut stages = Stages::new("task");
        stages.run("first", || Ok(())).unwrap();
        let error = stages.run("second", || anyhow::bail!("broken")).unwrap_err();
        assert_eq!(error.to_string(), "task stopped in the stage `second`");
        assert_eq!(error.root_cause().to_string(), "broken");
        assert_eq!(
            stages.done.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["first", "second"]
        );
    }
}
