//! The generated part of docs/comparison.md, between two comments.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::workspace;

const PAGE: &str = "docs/comparison.md";
const BEGIN: &str = "<!-- begin: cargo xtask compare --write -->\n";
const END: &str = "<!-- end: cargo xtask compare --write -->\n";

/// The page around its generated part.
pub(crate) struct ComparisonPage {
    before: String,
    after: String,
}

pub(crate) fn read() -> Result<ComparisonPage> {
    let text = fs::read_to_string(path()).with_context(|| format!("cannot read {PAGE}"))?;
    parse(&text).with_context(|| format!("{PAGE} needs these lines:\n{BEGIN}{END}"))
}

/// Writes the page with another generated part.
pub(crate) fn write(page: &ComparisonPage, generated: &str) -> Result<()> {
    fs::write(path(), page.with(generated)).with_context(|| format!("cannot write {PAGE}"))?;
    println!("{PAGE} is written");
    Ok(())
}

fn path() -> PathBuf {
    workspace::root().join(PAGE)
}

fn parse(text: &str) -> Option<ComparisonPage> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(ComparisonPage { before: before.to_owned(), after: after.to_owned() })
}

impl ComparisonPage {
    fn with(&self, generated: &str) -> String {
        format!("{}{BEGIN}\n{}\n\n{END}{}", self.before, generated.trim(), self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_generated_part_changes() {
        let page = parse(&format!("# Title\n\n{BEGIN}old\n{END}\nprose\n")).unwrap();
        let written = page.with("new\n");
        assert_eq!(written, format!("# Title\n\n{BEGIN}\nnew\n\n{END}\nprose\n"));
        assert_eq!(parse(&written).unwrap().with("new"), written);
    }

    #[test]
    fn a_page_without_its_marks_is_refused() {
        assert!(parse("# Title\n").is_none());
        assert!(parse(&format!("{END}{BEGIN}")).is_none());
    }

    #[test]
    fn the_page_has_its_marks() {
        read().unwrap();
    }
}
