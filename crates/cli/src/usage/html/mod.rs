//! A page with a chart for every limit, complete in one file.

mod axis;
mod svg;
mod text;

use std::fmt::Write;

use sluicegate::types::UsageWindow;

use self::text::{escaped, part_name};
use super::series::{Question, Series, Slot};
use crate::output::grouped;

/// With more bars, each would be too narrow to point at.
const BARS_MAX: usize = 240;
/// The number of colours that can be told apart in a stack; the parts beyond them are added up.
const PARTS_MAX: usize = 6;
/// The common name of the parts beyond them. No name of an entity or a resource has a `#`; [`part_name`]
/// leaves it out.
const OTHERS: &str = "#others";

const STYLE: &str = include_str!("page.css");

/// The page for these windows.
pub(super) fn page(question: &Question, usages: &[UsageWindow]) -> String {
    let title = escaped(&question.title());
    let mut body = format!("<h1>Usage</h1>\n<p class=\"about\">{title}</p>\n");
    let all = Series::all(question, usages);
    if all.is_empty() {
        let nothing = escaped(&question.nothing());
        let _ = writeln!(body, "<p class=\"nothing\">{nothing}</p>");
    }
    for series in all {
        let (series, parts) = with_few_parts(series.at_most(BARS_MAX));
        body.push_str(&section(&series, &parts));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Usage of {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}

fn section(series: &Series, parts: &[String]) -> String {
    let limit = escaped(series.limit.as_str());
    let (unit, total) = (series.unit(), grouped(series.amount(series.total())));
    let counted_in = series.counted_in();
    let is_whole = series.slots.iter().all(Slot::has_data);
    let shaded = if is_whole { "" } else { "; shaded: no data" };
    let mut section = format!(
        "<section>\n<h2>{limit}</h2>\n<p class=\"total\">{total} {counted_in} in all, shown per {unit}{shaded}</p>\n"
    );
    section.push_str(&svg::chart(series, parts));
    if parts.len() > 1 {
        section.push_str("<ul class=\"legend\">\n");
        for (n, part) in parts.iter().enumerate() {
            let _ =
                writeln!(section, "<li><i class=\"c{n}\"></i>{}</li>", escaped(part_name(part)));
        }
        section.push_str("</ul>\n");
    }
    section.push_str(&figures(series));
    section.push_str("</section>\n");
    section
}

/// The figures behind a chart, for readers who cannot see it or want to copy them.
fn figures(series: &Series) -> String {
    let (zone, counted_in) = (series.kind.zone(), series.counted_in());
    let mut table = format!(
        "<details><summary>Figures</summary>\n<table>\n<tr><th>start ({zone})</th><th>{counted_in}</th></tr>\n"
    );
    for slot in &series.slots {
        let figure = if slot.has_data() {
            grouped(series.amount(slot.total()))
        } else {
            "no data".to_owned()
        };
        let _ = writeln!(table, "<tr><td>{}</td><td>{figure}</td></tr>", slot.label());
    }
    table.push_str("</table>\n</details>\n");
    table
}

/// The largest parts by name, and the sum of the rest.
fn with_few_parts(mut series: Series) -> (Series, Vec<String>) {
    let mut parts = series.parts();
    if parts.len() <= PARTS_MAX {
        return (series, parts);
    }
    let rest = parts.split_off(PARTS_MAX);
    parts.push(OTHERS.to_owned());
    for slot in &mut series.slots {
        for part in &rest {
            if let Some(milli) = slot.parts.remove(part) {
                *slot.parts.entry(OTHERS.to_owned()).or_default() += milli;
            }
        }
    }
    (series, parts)
}
