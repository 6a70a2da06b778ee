//! Bars in the terminal, a line for every window.

use super::series::{Question, Series};

/// The width if the terminal does not report one.
const COLUMNS: usize = 80;
/// With fewer columns, bars would be too short to compare.
const COLUMNS_MIN: usize = 40;
/// With more lines, the first one would be out of sight.
const LINES_MAX: usize = 48;
/// Parts of a full block, an eighth each.
const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// The width of the terminal, or that of the variable `COLUMNS`.
pub(super) fn terminal_columns() -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let asked = || console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    said.or_else(asked).unwrap_or(COLUMNS).max(COLUMNS_MIN)
}

pub(super) fn charts(question: &Question, series: Vec<Series>, columns: usize) -> String {
    if series.is_empty() {
        return question.nothing();
    }
    let charts = series.into_iter().map(|series| chart(&series.at_most(LINES_MAX), columns));
    let mut lines = vec![question.title()];
    lines.extend(charts);
    lines.join("\n\n")
}

fn chart(series: &Series, columns: usize) -> String {
    let most = series.slots.iter().map(|slot| slot.total()).max().unwrap_or(0);
    let figures: Vec<String> = series
        .slots
        .iter()
        .map(
            |slot| if slot.has_data() { series.amount(slot.total()) } else { "no data".to_owned() },
        )
        .collect();
    let label_width = series.slots.first().map_or(0, |slot| slot.label().len());
    let figure_width = figures.iter().map(String::len).max().unwrap_or(0);
    let bar_width = columns.saturating_sub(label_width + figure_width + 4).max(1);
    let (total, counted_in) = (series.amount(series.total()), series.counted_in());
    let (limit, unit, zone) = (&series.limit, series.unit(), series.kind.zone());
    let mut lines = vec![format!("{limit}: {counted_in} per {unit} ({zone}), {total} in all")];
    for (slot, figure) in series.slots.iter().zip(&figures) {
        let bar = bar(slot.total(), most, bar_width);
        lines
            .push(format!("{} {figure:>figure_width$}  {bar}", slot.label()).trim_end().to_owned());
    }
    lines.join("\n")
}

/// A bar of at most `width` characters, to the eighth; any consumption shows at least an eighth.
fn bar(milli: i128, most: i128, width: usize) -> String {
    if milli <= 0 || most <= 0 {
        return String::new();
    }
    let scale = i128::try_from(width * 8).unwrap_or(8);
    let eighths = usize::try_from(milli.saturating_mul(scale) / most).unwrap_or(0).max(1);
    let mut bar = "█".repeat(eighths / 8);
    if eighths % 8 > 0 {
        bar.push(EIGHTHS[eighths % 8]);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_to_the_eighth_and_fit() {
        assert_eq!(bar(8, 8, 3), "███");
        assert_eq!(bar(4, 8, 3), "█▌");
        assert_eq!(bar(1, 1_000_000, 3), "▏");
        assert_eq!(bar(0, 8, 3), "");
        assert_eq!(bar(-5, 8, 3), "");
        assert_eq!(bar(-5, -5, 3), "");
    }
}
