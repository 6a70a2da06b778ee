//! Draws a [`Board`]: a pure function of figures and size.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, RenderDirection, Sparkline};

use super::board::{Board, Requests, TenantFigures, Used};
use super::traffic::{self, REQUESTS_BURST, TENANTS, TOKENS_BURST};
use crate::output::grouped;

/// The smallest width that fits everything.
const WIDTH_MIN: u16 = 80;
const HEIGHT_MIN: u16 = 24;
/// Columns of a tenant's name.
const NAME_WIDTH: usize = 13;
/// Columns of a figure behind a bar.
const LEFT_WIDTH: usize = 8;
/// Rows of all tenants and a header, in a frame.
#[allow(clippy::cast_possible_truncation, reason = "a handful")]
const TABLE_HEIGHT: u16 = TENANTS as u16 + 3;
/// Columns in front of a sparkline.
const RATE_WIDTH: u16 = 18;

pub(crate) fn draw(frame: &mut Frame<'_>, board: &Board) {
    let area = frame.area();
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let text = format!("the demo needs {WIDTH_MIN} columns and {HEIGHT_MIN} rows; q quits");
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let [title, balances, rates, usage, units] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(TABLE_HEIGHT),
        Constraint::Min(4),
        Constraint::Length(TABLE_HEIGHT),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_title(frame, title, board);
    draw_balances(frame, balances, board);
    draw_rates(frame, rates, board);
    draw_usage(frame, usage, board);
    draw_units(frame, units, board);
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let title = format!(
        " sluicegate demo   {TENANTS} tenants on model {}   running {} s",
        traffic::MODEL,
        grouped(board.elapsed_s)
    );
    frame.render_widget(Line::from(title).bold(), area);
    frame.render_widget(Line::from("q quits ").right_aligned().dim(), area);
}

fn draw_balances(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let block = Block::bordered().title(" Balances: what may be spent at once ");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    // A space before each of the three bars, and one before each figure.
    let bar = (usize::from(inner.width) - NAME_WIDTH - 3 * (LEFT_WIDTH + 3)) / 3;
    let column = bar + 1 + LEFT_WIDTH;
    let requests = format!("requests of {REQUESTS_BURST}");
    let tokens = format!("tokens of {}", grouped(TOKENS_BURST));
    let header =
        format!(" {:NAME_WIDTH$}{requests:column$}  {tokens:column$}  budget, USD", "tenant");
    let mut lines = vec![Line::from(header).dim()];
    for (tenant, figures) in board.tenants.iter().enumerate() {
        let TenantFigures { requests_left, tokens_left, cents_left, .. } = *figures;
        let mut spans = vec![Span::raw(format!(" {:NAME_WIDTH$}", traffic::name(tenant)))];
        let requests = grouped(requests_left);
        spans.extend(gauge(requests_left, REQUESTS_BURST, bar, &requests));
        spans.push(Span::raw("  "));
        spans.extend(gauge(tokens_left, TOKENS_BURST, bar, &grouped(tokens_left)));
        spans.push(Span::raw("  "));
        let budget_cents = traffic::budget(tenant) / 10_000;
        spans.extend(gauge(cents_left, budget_cents, bar, &dollars(cents_left)));
        lines.push(Line::from(spans));
    }
    frame.render_widget(Paragraph::new(lines), inner);
}

/// A bar of `width` columns and the figure behind it; a debt is an empty bar.
fn gauge(left: i64, of: u64, width: usize, figure: &str) -> [Span<'static>; 3] {
    let there = u64::try_from(left).unwrap_or(0).min(of);
    let filled = usize::try_from(there * width as u64 / of).unwrap_or(width);
    let color = match there * 100 / of {
        0..10 => Color::Red,
        10..40 => Color::Yellow,
        _ => Color::Green,
    };
    [
        Span::styled("█".repeat(filled), Style::new().fg(color)),
        Span::styled("░".repeat(width - filled), Style::new().fg(Color::DarkGray)),
        Span::raw(format!(" {figure:>LEFT_WIDTH$}")),
    ]
}

fn draw_rates(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let shown = usize::from(area.width - 2 - RATE_WIDTH);
    let of_shown = |of: fn(&Requests) -> u64| -> Vec<u64> {
        board.seconds.iter().take(shown).map(of).collect()
    };
    let (admitted, refused) = (of_shown(|s| s.admitted), of_shown(|s| s.refused));
    let mut rows = vec![("admitted", admitted, Color::Green), ("refused", refused, Color::Red)];
    // Borders, and a row for each.
    let has_room = area.height >= 5;
    if board.is_leased && has_room {
        rows.push(("writes", of_shown(|s| s.writes), Color::Blue));
    }
    let peak = rows.iter().flat_map(|(_, rates, _)| rates).copied().max().unwrap_or(0).max(1);
    let title = match board.seconds.get(1).filter(|_| board.is_leased) {
        Some(Requests { admitted, writes, .. }) => format!(
            " Per second, newest at the right, {peak} high: {admitted} admitted by {writes} writes "
        ),
        None => format!(" Requests per second, newest at the right; the full height is {peak}/s "),
    };
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let areas = Layout::vertical(vec![Constraint::Fill(1); rows.len()]).split(inner);
    for (row, (name, rates, color)) in areas.iter().zip(rows) {
        let [label, chart] =
            Layout::horizontal([Constraint::Length(RATE_WIDTH), Constraint::Fill(1)]).areas(*row);
        // The newest second is not over.
        let rate = rates.get(1).copied().unwrap_or(0);
        let [_, label] =
            Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(label);
        frame.render_widget(Line::from(format!(" {name:8} {rate:>4}/s")), label);
        let sparkline = Sparkline::default()
            .data(rates)
            .max(peak)
            .direction(RenderDirection::RightToLeft)
            .style(Style::new().fg(color));
        frame.render_widget(sparkline, chart);
    }
}

fn draw_usage(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let block = Block::bordered().title(" Usage windows, counted from the table's stream ");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    if board.minute.is_empty() {
        let text = " no usage yet: a window appears within a second of its first request";
        frame.render_widget(Paragraph::new(text).dim(), inner);
        return;
    }
    let header = format!(
        " {:NAME_WIDTH$}{:>30}{:>32}",
        "tenant",
        format!("minute from {} UTC", board.minute),
        format!("hour from {} UTC", board.hour),
    );
    let mut lines = vec![Line::from(header).dim()];
    for (tenant, figures) in board.tenants.iter().enumerate() {
        let Used { requests, tokens, .. } = figures.minute;
        let minute = format!("{:>9} req {:>10} tokens", grouped(requests), grouped(tokens));
        let Used { requests, cents, .. } = figures.hour;
        let hour = format!("{:>11} req {:>11} USD", grouped(requests), dollars(cents));
        lines.push(Line::from(format!(
            " {:NAME_WIDTH$}{:>30}{:>32}",
            traffic::name(tenant),
            minute,
            hour,
        )));
    }
    frame.render_widget(Paragraph::new(lines), inner);
}

fn draw_units(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let units = board.units;
    let all = units.acquires + units.adjustments + units.metering;
    let [acquires, adjustments, metering] =
        [units.acquires, units.adjustments, units.metering].map(whole);
    let mut text = format!(
        " Write units {}: acquires {acquires}, adjusts {adjustments}, metering {metering}",
        whole(all)
    );
    if let admitted @ 1.. = board.requests.admitted {
        #[allow(clippy::cast_precision_loss, reason = "shown with two digits")]
        let per_request = all / admitted as f64;
        text.push_str(&format!("; {per_request:.2}/req"));
    }
    frame.render_widget(Line::from(text), area);
}

/// Units are whole except for reads, which are not shown.
fn whole(units: f64) -> String {
    grouped(format!("{units:.0}"))
}

/// `-123456` as `-1,234.56`.
fn dollars(cents: impl Into<i128>) -> String {
    let cents = cents.into();
    let sign = if cents < 0 { "-" } else { "" };
    let cents = cents.unsigned_abs();
    format!("{sign}{}.{:02}", grouped(cents / 100), cents % 100)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::board::Units;
    use super::super::gateways::Book;
    use super::*;

    fn shown(width: u16, height: u16, board: &Board) -> TestBackend {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, board)).unwrap();
        terminal.backend().clone()
    }

    /// A board with the widest figures of a long run.
    fn busy() -> Board {
        let mut board = Board::default();
        let mut books = [Book::default(); TENANTS];
        for second in 0..300 {
            books[0].admitted += 10 + second % 7 * 3;
            books[5].refused += second % 13;
            board.tick(second, &books, None);
        }
        let balances = [
            (30, 20_000, 5_000),
            (29, 17_250, 4_905),
            (12, 8_000, 3_017),
            (3, 1_999, 205),
            (1, -12_345, 3),
            (0, 0, -1),
        ];
        for (n, (requests_left, tokens_left, cents_left)) in balances.into_iter().enumerate() {
            let grown = 10_i128.pow(u32::try_from(n).unwrap());
            let used = |factor| Used {
                requests: grown * factor,
                tokens: grown * factor * 80,
                cents: grown * factor * 80 / 500,
            };
            let (minute, hour) = (used(1), used(8));
            board.tenants[n] =
                TenantFigures { requests_left, tokens_left, cents_left, minute, hour };
        }
        (board.minute, board.hour) = ("14:03".to_owned(), "14:00".to_owned());
        board.units = Units { acquires: 123_456.0, adjustments: 98_765.0, metering: 54_321.0 };
        board
    }

    #[test]
    fn a_small_terminal_shows_everything() {
        insta::assert_snapshot!(shown(80, 24, &busy()));
    }

    #[test]
    fn with_leases_writes_are_shown_beside_what_is_admitted() {
        let mut board = Board::default();
        for second in 0..60 {
            let admitted = 40 * second + second * second / 4;
            let books = [Book { admitted, ..Book::default() }; TENANTS];
            board.tick(second, &books, Some(second * 2));
        }
        insta::assert_snapshot!(shown(100, 30, &board));
    }

    #[test]
    fn a_large_terminal_is_used() {
        insta::assert_snapshot!(shown(200, 50, &busy()));
    }

    #[test]
    fn before_the_first_request_it_says_so() {
        insta::assert_snapshot!(shown(80, 24, &Board::default()));
    }

    #[test]
    fn a_terminal_that_is_too_small_says_what_it_needs() {
        let small = shown(60, 20, &busy()).to_string();
        assert!(small.contains("80 columns and 24 rows"), "{small}");
    }
}
