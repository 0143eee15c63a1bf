//! Line charts as SVG, written by hand: no library, no font but the reader's, and the same
//! picture on every machine.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 210.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// Readers that see no red or no green can tell them apart (Okabe and Ito); dashes differ, too.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// One line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// The place on the horizontal axis, and the figure.
    pub(crate) points: Vec<(usize, f64)>,
}

/// A chart: places side by side, and figures above them.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// What the places are called.
    pub(crate) places: Vec<String>,
    pub(crate) across: String,
    pub(crate) up: String,
    pub(crate) logarithmic: bool,
    pub(crate) lines: Vec<Line>,
}

/// The vertical axis.
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    fn of(chart: &Chart) -> Axis {
        let all = || chart.lines.iter().flat_map(|l| &l.points).map(|p| p.1);
        let highest = all().fold(f64::MIN_POSITIVE, f64::max);
        if !chart.logarithmic {
            return Axis { low: 0.0, high: nice(highest), logarithmic: false };
        }
        let lowest = all().filter(|v| *v > 0.0).fold(highest, f64::min);
        let (low, high) = (lowest.log10().floor(), highest.log10().ceil());
        Axis { low: 10f64.powf(low), high: 10f64.powf(high.max(low + 1.0)), logarithmic: true }
    }

    fn y(&self, value: f64) -> f64 {
        let part = if self.logarithmic {
            (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            value / self.high
        };
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.logarithmic {
            return (0..=5).map(|n| self.high * f64::from(n) / 5.0).collect();
        }
        let mut ticks = vec![self.low];
        // 1, 2, 5, 10: a line for each, where there is room.
        let steps: &[f64] = if self.high / self.low < 2e4 { &[2.0, 2.5, 2.0] } else { &[10.0] };
        for step in steps.iter().cycle() {
            match ticks.last() {
                Some(last) if *last < self.high * 0.99 => ticks.push(last * step),
                _ => break,
            }
        }
        ticks
    }
}

/// The next number that reads well.
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.iter().map(|s| s * power).find(|n| *n >= value * 1.000_001).unwrap_or(10.0 * power)
}

fn label(value: f64) -> String {
    let text = if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Chart {
    /// The picture.
    pub(crate) fn svg(&self) -> String {
        let mut out = Vec::new();
        out.push(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\" role=\"img\">"
        ));
        out.push(format!("<title>{}</title>", escaped(&self.title)));
        out.push(format!("<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>"));
        out.push(text(
            LEFT,
            24.0,
            "start",
            &format!("<tspan font-size=\"15\">{}</tspan>", escaped(&self.title)),
        ));
        let axis = Axis::of(self);
        self.grid(&axis, &mut out);
        for (n, line) in self.lines.iter().enumerate() {
            self.line(n, line, &axis, &mut out);
        }
        out.push("</svg>\n".to_owned());
        out.join("\n")
    }

    fn x(&self, place: usize) -> f64 {
        let width = WIDTH - LEFT - RIGHT;
        LEFT + width * (place as f64 + 0.5) / self.places.len().max(1) as f64
    }

    fn grid(&self, axis: &Axis, out: &mut Vec<String>) {
        for tick in axis.ticks() {
            let y = axis.y(tick);
            out.push(format!(
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>",
                WIDTH - RIGHT
            ));
            out.push(text(LEFT - 8.0, y + 4.0, "end", &label(tick)));
        }
        for (place, name) in self.places.iter().enumerate() {
            out.push(text(self.x(place), HEIGHT - BOTTOM + 18.0, "middle", &escaped(name)));
        }
        let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2.0;
        out.push(text(middle, HEIGHT - 18.0, "middle", &escaped(&self.across)));
        out.push(text(LEFT, TOP - 10.0, "end", &escaped(&self.up)));
    }

    fn line(&self, n: usize, line: &Line, axis: &Axis, out: &mut Vec<String>) {
        let colour = COLOURS[n % COLOURS.len()];
        let dash = if n < COLOURS.len() { "none" } else { "6 4" };
        let at = |p: &(usize, f64)| (self.x(p.0), axis.y(p.1));
        let mut path = String::new();
        for (x, y) in line.points.iter().map(at) {
            // Writing to a string does not fail.
            let _ = write!(path, "{x:.1},{y:.1} ");
            out.push(format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"));
        }
        let style = format!("stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"");
        out.push(format!("<polyline points=\"{}\" fill=\"none\" {style}/>", path.trim_end()));
        let (x, y) = (WIDTH - RIGHT + 15.0, TOP + 8.0 + 20.0 * n as f64);
        out.push(format!("<line x1=\"{x}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" {style}/>", x + 24.0));
        out.push(text(x + 30.0, y + 4.0, "start", &escaped(&line.name)));
    }
}

/// `content` is escaped already.
fn text(x: f64, y: f64, anchor: &str, content: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(logarithmic: bool) -> Chart {
        let line =
            |name: &str, y: f64| Line { name: name.to_owned(), points: vec![(0, y), (1, 9.0)] };
        Chart {
            title: "a < b & \"c\"".to_owned(),
            places: vec!["1 KiB".to_owned(), "1 MiB".to_owned()],
            across: "size".to_owned(),
            up: "GB/s".to_owned(),
            logarithmic,
            lines: vec![line("x & y", 0.02), line("z", 3.0)],
        }
    }

    #[test]
    fn all_of_it_is_inside_and_escaped() {
        for logarithmic in [false, true] {
            let svg = chart(logarithmic).svg();
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
            assert!(svg.contains("a &lt; b &amp; &quot;c&quot;") && svg.contains("x &amp; y"));
            assert_eq!(svg.matches("<polyline").count(), 2);
            assert_eq!(svg.matches("<circle").count(), 4);
            for part in svg.split("cy=\"").skip(1) {
                let y: f64 = part.split('"').next().unwrap().parse().unwrap();
                assert!((TOP - 1.0..=HEIGHT - BOTTOM + 1.0).contains(&y), "{y}");
            }
        }
    }

    #[test]
    fn axes_read_well() {
        let axis = Axis::of(&chart(false));
        assert_eq!((axis.low, axis.high), (0.0, 10.0));
        let axis = Axis::of(&chart(true));
        assert!((axis.low - 0.01).abs() < 1e-9 && (axis.high - 10.0).abs() < 1e-9);
        let ticks: Vec<_> = axis.ticks().into_iter().map(label).collect();
        assert_eq!(ticks, ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10"]);
        assert!(axis.y(10.0) < axis.y(1.0) && axis.y(1.0) < axis.y(0.01));
        assert_eq!([nice(0.9), nice(11.0), nice(26.0)], [1.0, 15.0, 30.0]);
        assert_eq!(
            ["0.02", "5", "1000"],
            [label(0.02), label(5.0), label(1000.0)].map(|l| l).each_ref().map(String::as_str)
        );
        // No figures at all: still a picture.
        assert!(Chart { lines: Vec::new(), ..chart(true) }.svg().contains("</svg>"));
    }
}
