//! Draws the age of the oldest record after an outage.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;

const SIZE: (u32, u32) = (900, 420);
const COLOURS: [RGBColor; 3] =
    [RGBColor(31, 90, 166), RGBColor(219, 130, 40), RGBColor(55, 150, 105)];

/// Draws one line for each size of a batch; ages in seconds, one for each second.
pub(super) fn ages(path: &Path, lines: &[(f64, Vec<f64>)]) -> Result<()> {
    draw(path, lines).with_context(|| path.display().to_string())
}

fn draw(path: &Path, lines: &[(f64, Vec<f64>)]) -> Result<()> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let minutes = |seconds: usize| u32::try_from(seconds).map_or(f64::MAX, f64::from) / 60.0;
    let longest = lines.iter().map(|(_, ages)| ages.len()).max().unwrap_or(0);
    let oldest = lines.iter().flat_map(|(_, ages)| ages).fold(0.0_f64, |a, b| a.max(*b));
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..minutes(longest) * 1.02, 0.0..oldest / 60.0 * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("minutes since the processor is back")
        .y_desc("age of the oldest record, minutes")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    for ((batch, ages), colour) in lines.iter().zip(COLOURS) {
        let points = ages.iter().enumerate().map(|(n, age)| (minutes(n), age / 60.0));
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(format!("{batch:.0} records a batch"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
    }
    chart.configure_series_labels().background_style(WHITE).border_style(BLACK.mix(0.3)).draw()?;
    area.present()?;
    Ok(())
}
