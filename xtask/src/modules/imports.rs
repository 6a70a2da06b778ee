//! The modules of a crate, and which file each name in them comes from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemUse, UseTree};

/// Why a file depends on another: the names that it takes from there.
pub(super) type Edges = BTreeMap<(String, String), BTreeSet<String>>;

/// Re-exports that lead to one another in a circle end somewhere.
const HOPS_MAX: usize = 16;

/// Every module by its path from the root, which is empty.
pub(super) struct Imports {
    modules: BTreeMap<Vec<String>, Module>,
    files: BTreeSet<String>,
}

/// A module: what it defines, what it imports, and the paths that it names.
#[derive(Default)]
struct Module {
    file: String,
    items: BTreeSet<String>,
    imported: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    named: BTreeSet<Vec<String>>,
}

/// The target of a path.
enum Target {
    Module(Vec<String>),
    File(String),
}

impl Imports {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut imports = Self { modules: BTreeMap::new(), files: BTreeSet::new() };
        let folder = root.parent().context("a root without a folder")?;
        imports.read_file(folder, root, Vec::new(), folder)?;
        Ok(imports)
    }

    pub(super) fn files(&self) -> &BTreeSet<String> {
        &self.files
    }

    /// The names that each file takes from each other file.
    pub(super) fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for (at, module) in &self.modules {
            for path in module.named.iter().chain(module.imported.values()).chain(&module.globs) {
                let to = match self.resolve(at, path, 0) {
                    Some(Target::File(to)) => to,
                    Some(Target::Module(to)) if module.globs.contains(path) => {
                        self.modules[&to].file.clone()
                    }
                    // A module alone: what is used of it is named elsewhere.
                    _ => continue,
                };
                if to != module.file {
                    let names = edges.entry((module.file.clone(), to)).or_default();
                    names.extend(path.last().cloned());
                }
            }
        }
        edges
    }

    fn read_file(
        &mut self,
        root: &Path,
        file: &Path,
        at: Vec<String>,
        children: &Path,
    ) -> Result<()> {
        let source = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let items = syn::parse_file(&source).with_context(|| file.display().to_string())?.items;
        let name = file.strip_prefix(root)?.display().to_string();
        self.files.insert(name.clone());
        self.read_items(root, &name, &items, at, children)
    }

    fn read_items(
        &mut self,
        root: &Path,
        file: &str,
        items: &[Item],
        at: Vec<String>,
        children: &Path,
    ) -> Result<()> {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        for item in items {
            module.items.extend(name(item));
            let Item::Mod(child) = item else {
                module.visit_item(item);
                continue;
            };
            if is_test(&child.attrs) {
                continue;
            }
            let name = child.ident.to_string();
            let below = children.join(&name);
            let at = [at.as_slice(), &[name]].concat();
            match &child.content {
                Some((_, items)) => self.read_items(root, file, items, at, &below)?,
                None => self.read_file(root, &file_of(&below), at, &below)?,
            }
        }
        self.modules.insert(at, module);
        Ok(())
    }

    /// `None`: the path leads out of the crate, or is none.
    fn resolve(&self, at: &[String], path: &[String], hops: usize) -> Option<Target> {
        let (first, rest) = path.split_first().filter(|_| hops < HOPS_MAX)?;
        let start = match first.as_str() {
            "crate" => Vec::new(),
            "self" => at.to_vec(),
            "super" => at.split_last()?.1.to_vec(),
            _ => return self.lookup(at, path, hops),
        };
        match rest.first() {
            None => Some(Target::Module(start)),
            Some(next) if next == "super" => self.resolve(&start, rest, hops),
            // A macro made the items of a module that are not found.
            Some(_) => self.lookup(&start, rest, hops).or_else(|| self.file(&start)),
        }
    }

    /// Looks up the names of a path in this module.
    fn lookup(&self, at: &[String], path: &[String], hops: usize) -> Option<Target> {
        let (module, (first, rest)) = (self.modules.get(at)?, path.split_first()?);
        let child = [at, std::slice::from_ref(first)].concat();
        let is_child = self.modules.contains_key(&child);
        if module.items.contains(first) && (rest.is_empty() || !is_child) {
            return self.file(at);
        }
        if is_child && rest.is_empty() {
            return Some(Target::Module(child));
        }
        if is_child {
            return self.lookup(&child, rest, hops).or_else(|| self.file(&child));
        }
        if let Some(imported) = module.imported.get(first)
            && imported != path
        {
            return match self.resolve(at, imported, hops + 1)? {
                Target::Module(to) if rest.is_empty() => Some(Target::Module(to)),
                Target::Module(to) => self.lookup(&to, rest, hops + 1).or_else(|| self.file(&to)),
                file => Some(file),
            };
        }
        module.globs.iter().find_map(|glob| match self.resolve(at, glob, hops + 1)? {
            Target::Module(to) if to != at => self.lookup(&to, path, hops + 1),
            _ => None,
        })
    }

    fn file(&self, at: &[String]) -> Option<Target> {
        self.modules.get(at).map(|module| Target::File(module.file.clone()))
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast Item) {
        if !attributes(item).is_some_and(is_test) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&item.tree, Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            self.named.insert(path.segments.iter().map(|part| part.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    /// The input of a macro need not be Rust: every `a::b` in it is a path.
    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.visit_path(&item.path);
        let text = item.tokens.to_string().replace(" :: ", "::");
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        for path in text.split(|c| !is_word(c)).filter(|path| path.contains("::")) {
            self.named.insert(path.split("::").map(str::to_owned).collect());
        }
    }
}

impl Module {
    fn import(&mut self, tree: &UseTree, mut path: Vec<String>) {
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.import(&tree.tree, path);
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, path.clone()));
            }
            UseTree::Glob(_) => self.globs.push(path),
            UseTree::Name(tree) if tree.ident == "self" => {
                self.imported.extend(path.last().cloned().map(|name| (name, path)));
            }
            UseTree::Name(tree) => {
                path.push(tree.ident.to_string());
                self.imported.insert(tree.ident.to_string(), path);
            }
            UseTree::Rename(tree) => {
                path.extend((tree.ident != "self").then(|| tree.ident.to_string()));
                // Every `as _` is one of its own.
                let name =
                    if tree.rename == "_" { path.join("::") } else { tree.rename.to_string() };
                self.imported.insert(name, path);
            }
        }
    }
}

/// The file of a module that would be the folder `below`.
fn file_of(below: &Path) -> PathBuf {
    let file = below.with_extension("rs");
    if file.exists() { file } else { below.join("mod.rs") }
}

fn name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn attributes(item: &Item) -> Option<&[Attribute]> {
    Some(match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => return None,
    })
}

/// True for `#[cfg(test)]`, or `#[cfg(all(test, ..))]`.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let mut is_test = false;
        // Other conditions are not read.
        let _ = attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("all") {
                return meta.parse_nested_meta(|meta| {
                    is_test |= meta.path.is_ident("test");
                    Ok(())
                });
            }
            is_test |= meta.path.is_ident("test");
            Ok(())
        });
        is_test
    })
}
