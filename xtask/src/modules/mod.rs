//! `cargo xtask modules`: dependencies between the files of a crate point one way.
//!
//! Files that import each other in a circle can only be read, moved and tested together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use self::imports::{Edges, Imports};
use crate::{process, workspace};

mod imports;

/// Checks that no files of a crate import each other in a circle.
///
/// A file depends on the file that defines what it names, through any re-export. `mod.rs` is a file
/// like any other: a child that uses an item of its parent and a parent that uses one of its child
/// are a circle, but `mod child;` alone is no use. Tests are left out. Calls of methods are not
/// followed, only names.
#[derive(clap::Args)]
pub(crate) struct Args;

pub(crate) fn run() -> Result<()> {
    let mut circles = 0;
    for (package, roots) in packages()? {
        let mut files = 0;
        for root in roots {
            let root = Path::new(&root);
            let imports = Imports::read(root).with_context(|| root.display().to_string())?;
            files += imports.files().len();
            let edges = imports.edges();
            for circle in circles_of(imports.files(), &edges) {
                circles += 1;
                println!("{package}: a circle of {} files", circle.len());
                for ((from, to), names) in &edges {
                    if circle.contains(from) && circle.contains(to) {
                        let names: Vec<_> = names.iter().map(String::as_str).collect();
                        println!("  {from} -> {to} ({})", names.join(", "));
                    }
                }
            }
        }
        println!("{package}: {files} files checked");
    }
    ensure!(circles == 0, "{circles} circles; move what both sides need to a file below them");
    Ok(())
}

/// The packages of the workspace with the root files of their libraries and programs.
fn packages() -> Result<Vec<(String, Vec<String>)>> {
    let mut cargo = process::cargo();
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let output = cargo.current_dir(workspace::root()).output().context("cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let is_checked = |target: &Value| {
        let is_source = |kind: &Value| ["lib", "cdylib", "bin"].contains(&text(kind).as_str());
        array(&target["kind"]).iter().any(is_source)
    };
    Ok(array(&metadata["packages"])
        .iter()
        .map(|package| {
            let targets = array(&package["targets"]);
            let roots = targets.iter().filter(|target| is_checked(target));
            (text(&package["name"]), roots.map(|target| text(&target["src_path"])).collect())
        })
        .collect())
}

/// The sets of files of which each depends on each, over however many others.
fn circles_of(files: &BTreeSet<String>, edges: &Edges) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<_, _> = files.iter().map(|file| (file, reached(file, edges))).collect();
    let mut circles = Vec::new();
    for file in files.iter().filter(|file| reached[file].contains(*file)) {
        let is_mutual =
            |other: &&String| reached[file].contains(*other) && reached[other].contains(file);
        let circle: BTreeSet<_> = files.iter().filter(is_mutual).cloned().collect();
        if !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

fn reached(from: &str, edges: &Edges) -> BTreeSet<String> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(file) = next.pop() {
        for (_, to) in edges.keys().filter(|(from, _)| *from == file) {
            if reached.insert(to.clone()) {
                next.push(to.clone());
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn circles(sources: &[(&str, &str)]) -> Vec<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        for (name, source) in sources {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, source).unwrap();
        }
        let imports = Imports::read(&folder.path().join("lib.rs")).unwrap();
        let circles = circles_of(imports.files(), &imports.edges());
        circles.into_iter().map(|circle| circle.into_iter().collect()).collect()
    }

    #[test]
    fn a_reexport_leads_to_the_file_that_defines() {
        let lib = "mod a; mod b; pub use a::A; pub use crate::b::{B as C};";
        let b = ("b.rs", "pub struct B;");
        let found = circles(&[("lib.rs", lib), ("a.rs", "use crate::C; pub struct A(C);"), b]);
        assert!(found.is_empty(), "{found:?}");
        let b = ("b.rs", "pub struct B(crate::A);");
        let found = circles(&[("lib.rs", lib), ("a.rs", "use crate::C; pub struct A;"), b]);
        assert_eq!(found, [["a.rs", "b.rs"]]);
    }

    #[test]
    fn an_item_of_the_root_is_a_dependency_on_the_root() {
        let lib = ("lib.rs", "mod a; pub use a::A; pub struct Root;");
        let found = circles(&[lib, ("a.rs", "pub struct A(crate::Root);")]);
        assert_eq!(found, [["a.rs", "lib.rs"]]);
    }

    #[test]
    fn a_parent_and_a_child_that_use_each_other_are_a_circle() {
        let lib = ("lib.rs", "mod a;");
        let child = ("a/b.rs", "pub struct B; fn f() { super::g(); }");
        let found = circles(&[lib, ("a/mod.rs", "mod b; fn g() {}"), child]);
        assert!(found.is_empty(), "{found:?}");
        let found = circles(&[lib, ("a/mod.rs", "mod b; fn g() { b::B; }"), child]);
        assert_eq!(found, [["a/b.rs", "a/mod.rs"]]);
    }

    #[test]
    fn names_in_macros_and_behind_imported_modules_count() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "use crate::b; pub fn f() { b::g(); }");
        let b = ("b.rs", "pub fn g() { assert!(crate::a::f() == 1, \"{}\", 2); }");
        assert_eq!(circles(&[lib, a, b]), [["a.rs", "b.rs"]]);
    }

    #[test]
    fn tests_are_left_out() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "use crate::b::B; pub struct A; #[cfg(test)] mod tests { use super::*; }");
        let b = ("b.rs", "pub struct B; #[cfg(test)] mod b_tests; #[cfg(test)] use crate::a::A;");
        let found = circles(&[lib, a, b, ("b/b_tests.rs", "use crate::a::A;")]);
        assert!(found.is_empty(), "{found:?}");
    }
}
