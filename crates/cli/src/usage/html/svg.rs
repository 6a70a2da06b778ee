//! A chart of bars as inline SVG.

use std::fmt::Write;

use super::super::series::{Series, Slot};
use super::axis::{Scale, labels, short};
use super::text::{escaped, part_name};
use crate::output::{counted, grouped};

/// All in the units of the drawing, which the page scales to its width.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 290.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 62.0;
/// Room for a label under the axis.
const LABEL_WIDTH: f64 = 76.0;
/// Room for "no data".
const GAP_TEXT_WIDTH: f64 = 64.0;
/// The part of a slot's width that its bar leaves free.
const BETWEEN_BARS: f64 = 0.16;

struct Plot<'a> {
    series: &'a Series,
    parts: &'a [String],
    scale: Scale,
    slot_width: f64,
    svg: String,
}

/// The chart of a series; each part has the colour of its place in `parts`.
pub(super) fn chart(series: &Series, parts: &[String]) -> String {
    let extreme = |slot: &Slot, sign: i128| -> i128 {
        slot.parts.values().filter(|milli| milli.signum() == sign).sum()
    };
    let most = series.slots.iter().map(|slot| extreme(slot, 1)).max().unwrap_or(0);
    let least = series.slots.iter().map(|slot| extreme(slot, -1)).min().unwrap_or(0);
    let scale = Scale::covering(least, most);
    let slot_width = (WIDTH - LEFT - RIGHT) / float(series.slots.len().max(1));
    let mut plot = Plot { series, parts, scale, slot_width, svg: String::new() };
    plot.axes();
    plot.gaps();
    plot.bars();
    let limit = escaped(series.limit.as_str());
    format!(
        "<div class=\"plot\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{limit}, {} per {}\">\n{}</svg></div>\n",
        series.counted_in(),
        series.unit(),
        plot.svg
    )
}

impl Plot<'_> {
    fn x(&self, slot: usize) -> f64 {
        LEFT + self.slot_width * float(slot)
    }

    /// Down is positive in a drawing.
    fn y(&self, milli: i128) -> f64 {
        let share = ratio(milli - self.scale.low, self.scale.high - self.scale.low);
        HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let text = escaped(text);
        let _ = writeln!(
            self.svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    fn axes(&mut self) {
        let ticks: Vec<i128> = self.scale.ticks().collect();
        for tick in ticks {
            let y = self.y(tick);
            let class = if tick == 0 { "zero" } else { "grid" };
            let right = WIDTH - RIGHT;
            let _ = writeln!(
                self.svg,
                "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
            );
            self.text(LEFT - 8.0, y + 4.0, "end", &short(self.series, tick));
        }
        self.text(
            8.0,
            16.0,
            "start",
            &format!("{} per {}", self.series.counted_in(), self.series.unit()),
        );
        let most = whole((WIDTH - LEFT - RIGHT) / LABEL_WIDTH);
        for label in labels(&self.series.slots, most) {
            let x = self.x(label.slot) + self.slot_width / 2.0;
            let base = HEIGHT - BOTTOM;
            self.text(x, base + 18.0, "middle", &label.upper);
            if let Some(lower) = &label.lower {
                self.text(x, base + 33.0, "middle", lower);
            }
        }
        let time = format!("time ({})", self.series.kind.zone());
        self.text(LEFT + (WIDTH - LEFT - RIGHT) / 2.0, HEIGHT - 8.0, "middle", &time);
    }

    /// Marks the slots without data, which differ from short bars.
    fn gaps(&mut self) {
        let slots = &self.series.slots;
        let mut first = 0;
        let mut runs = Vec::new();
        while first < slots.len() {
            let length = slots[first..].iter().take_while(|slot| !slot.has_data()).count();
            if length > 0 {
                runs.push((first, length));
            }
            first += length.max(1);
        }
        for (first, length) in runs {
            let (x, width) = (self.x(first), self.slot_width * float(length));
            let height = HEIGHT - BOTTOM - TOP;
            let from = slots_label(&self.series.slots[first..first + length]);
            let _ = writeln!(
                self.svg,
                "<rect class=\"gap\" x=\"{x:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\"><title>{from}: no data</title></rect>"
            );
            if width >= GAP_TEXT_WIDTH {
                self.text(x + width / 2.0, TOP + height / 2.0, "middle", "no data");
            }
        }
    }

    fn bars(&mut self) {
        let width = self.slot_width * (1.0 - BETWEEN_BARS);
        for (n, slot) in self.series.slots.iter().enumerate().filter(|(_, slot)| slot.has_data()) {
            let x = self.x(n) + self.slot_width * BETWEEN_BARS / 2.0;
            let _ = write!(self.svg, "<g><title>{}</title>", self.tooltip(slot));
            // The whole column reacts to the pointer, however short its bar is.
            let (left, all) = (self.x(n), self.slot_width);
            let height = HEIGHT - BOTTOM - TOP;
            let _ = write!(
                self.svg,
                "<rect class=\"touch\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{all:.1}\" height=\"{height}\"/>"
            );
            let (mut above, mut below) = (0, 0);
            for (colour, part) in self.parts.iter().enumerate() {
                let Some(&milli) = slot.parts.get(part).filter(|milli| **milli != 0) else {
                    continue;
                };
                let from = if milli > 0 { &mut above } else { &mut below };
                let (start, end) = (*from, *from + milli);
                *from = end;
                let (top, bottom) = (self.y(start.max(end)), self.y(start.min(end)));
                // Any consumption is visible.
                let height = (bottom - top).max(1.0);
                let _ = write!(
                    self.svg,
                    "<rect class=\"c{colour}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
                );
            }
            self.svg.push_str("</g>\n");
        }
    }

    fn tooltip(&self, slot: &Slot) -> String {
        let total = grouped(self.series.amount(slot.total()));
        let mut lines = vec![format!(
            "{}: {total} {}",
            slots_label(std::slice::from_ref(slot)),
            self.series.counted_in()
        )];
        if self.parts.len() > 1 {
            let parts = self.parts.iter().filter_map(|part| {
                let milli = slot.parts.get(part)?;
                Some(format!(
                    "{}: {}",
                    escaped(part_name(part)),
                    grouped(self.series.amount(*milli))
                ))
            });
            lines.extend(parts);
        }
        lines.join("\n")
    }
}

/// `2026-01-28 14:00 UTC, 3 hours`.
fn slots_label(slots: &[Slot]) -> String {
    let windows = slots.iter().map(|slot| slot.windows).sum();
    let Some(first) = slots.first() else { return String::new() };
    let kind = first.first.kind();
    format!("{} {}, {}", first.label(), kind.zone(), counted(windows, kind.unit()))
}

#[expect(clippy::cast_precision_loss, reason = "a drawing needs no more than a double has")]
fn float(n: usize) -> f64 {
    n as f64
}

#[expect(clippy::cast_precision_loss, reason = "a drawing needs no more than a double has")]
fn ratio(part: i128, whole: i128) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small positive number"
)]
fn whole(n: f64) -> usize {
    n as usize
}
