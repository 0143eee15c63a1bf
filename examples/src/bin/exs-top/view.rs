//! Draws the live view.
//!
//! From above: what is shown and the sums of all processes; in the screen of a process, its figures;
//! the table; processes that could not be read; the keys. On a low screen the table stays longest.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table as Grid, TableState};

use crate::app::{App, Mode, Screen};
use crate::columns::{Table, shown};
use crate::once::HINT;
use crate::units;
use crate::world::{Rates, SeenProcess};

/// Colours, or none (NO_COLOR).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    colours: bool,
}

impl Theme {
    /// As <https://no-color.org> says: no colours if the variable is set and not empty.
    pub(crate) fn of_environment() -> Theme {
        Theme::new(std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
    }

    pub(crate) fn new(colours: bool) -> Theme {
        Theme { colours }
    }

    fn paint(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    fn head(self) -> Style {
        self.paint(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    fn warning(self) -> Style {
        self.paint(Color::Yellow)
    }

    fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

const HELP: [(&str, &str); 12] = [
    ("up, down, j, k", "select a row"),
    ("Enter", "show the process of the row"),
    ("Tab", "processes, or sockets"),
    ("Esc", "clear the filter; go back"),
    ("s", "sort by the next column"),
    ("r", "reverse the order"),
    ("/", "show only rows with a text"),
    ("p, space", "pause, or go on"),
    ("+, -", "fewer snapshots, or more"),
    ("PgUp, PgDn", "ten rows up, or down"),
    ("?, h", "this help"),
    ("q", "end"),
];

/// Draws the whole screen.
pub(crate) fn draw(frame: &mut Frame<'_>, app: &App, theme: Theme) {
    let area = frame.area();
    let process = match app.screen {
        Screen::Process(pid) => app.world.process(pid),
        Screen::Sockets | Screen::Processes => None,
    };
    let details = process.map_or_else(Vec::new, figures);
    let troubles = troubles(app, theme);
    // The table has five lines at least, if the screen has them.
    let spare = usize::from(area.height).saturating_sub(7);
    let details_height = details.len().min(spare);
    let troubles_height = troubles.len().min(spare - details_height);
    let parts = [1, details_height, usize::MAX, troubles_height, 1].map(|height| match height {
        usize::MAX => Constraint::Min(0),
        n => Constraint::Length(u16::try_from(n).unwrap_or(u16::MAX)),
    });
    let [head, middle, table, below, foot] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(title(app, theme)), head);
    frame.render_widget(Paragraph::new(details), middle);
    draw_table(frame, table, app, theme);
    frame.render_widget(Paragraph::new(troubles), below);
    frame.render_widget(Paragraph::new(footer(app, theme)), foot);
    if app.mode == Mode::Help {
        draw_help(frame, area, theme);
    }
}

fn title(app: &App, theme: Theme) -> Line<'static> {
    let what = match app.screen {
        Screen::Sockets => "sockets".to_owned(),
        Screen::Processes => "processes".to_owned(),
        Screen::Process(pid) => format!("process {pid}"),
    };
    let all = &app.world.processes;
    let sum = |of: fn(&Rates) -> Option<f64>| {
        all.iter().filter_map(|p| p.rates.as_ref()).filter_map(of).sum()
    };
    let mut spans = vec![
        Span::styled(format!("exs-top {what}"), theme.head()),
        Span::raw(format!(
            "  {} processes  {} sockets  TX {}/s  RX {}/s  {} ops/s",
            all.len(),
            all.iter().map(|p| p.sockets.len()).sum::<usize>(),
            units::bytes(sum(|r| Some(r.sent))),
            units::bytes(sum(|r| Some(r.received))),
            units::count(sum(|r| r.operations)),
        )),
    ];
    if app.paused {
        spans.insert(1, Span::styled("  PAUSED", theme.warning().add_modifier(Modifier::BOLD)));
    }
    Line::from(spans)
}

/// The figures of a process.
fn figures(p: &SeenProcess) -> Vec<Line<'static>> {
    let (d, c) = (&p.line.data, &p.line.data.counters);
    let bytes = |n: u64| units::bytes(n as f64);
    let up = units::uptime(Duration::from_micros(d.at_us));
    let mut lines = vec![
        format!(
            "{} (pid {}, uid {}) EXS {}, up {up}, {} shards, {} sockets, {} listeners, {} kernel sockets",
            d.name, d.pid, d.uid, d.exs, d.shards, d.sockets, d.listeners, d.kernel_sockets
        ),
        format!(
            "events {}  engine runs {}  sleeps {}  system calls {}  in flight {}",
            d.events, d.engine_runs, d.sleeps, d.system_calls, d.in_flight
        ),
        format!(
            "sent      {} direct, {} by the ring, {} inline, {} by WRITE; {} sends, {} messages",
            bytes(c.sent_direct),
            bytes(c.sent_indirect),
            bytes(c.sent_inline),
            bytes(c.write_bytes),
            c.sends,
            c.messages_sent
        ),
        format!(
            "received  {} direct, {} by the ring, {} inline, {} by READ; {} receives, {} messages",
            bytes(c.received_direct),
            bytes(c.received_indirect),
            bytes(c.received_inline),
            bytes(c.read_bytes),
            c.recvs,
            c.messages_received
        ),
        format!(
            "adverts {} sent, {} received, {} stale; stalls {} for credits, {} for the queue; {} copied",
            c.adverts_sent,
            c.adverts_received,
            c.adverts_stale,
            c.credit_stalls,
            c.queue_stalls,
            bytes(c.copied_bytes)
        ),
    ];
    lines.extend(d.devices.iter().map(|d| {
        format!(
            "{} {}: {} connections, {} sent, {} received",
            d.transport,
            d.device,
            d.connections,
            bytes(d.counters.sent()),
            bytes(d.counters.received())
        )
    }));
    lines.into_iter().map(|line| Line::raw(shown(line))).collect()
}

fn troubles(app: &App, theme: Theme) -> Vec<Line<'static>> {
    let line = |path: &std::path::Path, why: &str| shown(format!("{}: {why}", path.display()));
    let troubles = app.world.troubles.iter().map(|t| line(&t.path, &t.why));
    troubles.map(|text| Line::styled(text, theme.warning())).collect()
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, app: &App, theme: Theme) {
    let table = app.table();
    if table.rows.is_empty() {
        let why = match (app.world.processes.is_empty(), app.screen) {
            (true, _) => HINT,
            (false, Screen::Process(_)) => "the process has no such socket, or has ended",
            (false, _) => "there is no row with this text",
        };
        return frame.render_widget(Paragraph::new(why), area);
    }
    let kept = table.fitting(usize::from(area.width));
    let widths = table.widths();
    let constraints =
        kept.iter().map(|at| Constraint::Length(u16::try_from(widths[*at]).unwrap_or(u16::MAX)));
    let titles = kept.iter().map(|at| {
        let style = match table.sorted == Some(*at) {
            true => theme.head().add_modifier(Modifier::UNDERLINED),
            false => theme.head(),
        };
        cell(&table, *at, table.titles[*at]).style(style)
    });
    let rows = table.rows.iter().map(|row| {
        let cells = kept.iter().map(|at| cell(&table, *at, &row.cells[*at]));
        Row::new(cells).style(if row.waits { theme.warning() } else { Style::new() })
    });
    let grid = Grid::new(rows, constraints)
        .header(Row::new(titles))
        .column_spacing(1)
        .row_highlight_style(theme.selected());
    let mut state = TableState::new().with_selected(Some(app.selected));
    frame.render_stateful_widget(grid, area, &mut state);
}

fn cell(table: &Table, at: usize, text: &str) -> Cell<'static> {
    let line = Line::raw(text.to_owned());
    Cell::from(if table.right[at] { line.right_aligned() } else { line })
}

fn footer(app: &App, theme: Theme) -> Line<'static> {
    match app.mode {
        Mode::Filter => {
            Line::styled(format!("filter: {}_", shown(app.choice.filter.clone())), theme.head())
        }
        Mode::Commands | Mode::Help => {
            let filter = match app.choice.filter.as_str() {
                "" => String::new(),
                text => format!("  filter: {}", shown(text.to_owned())),
            };
            let interval = app.interval.as_secs_f64();
            Line::raw(format!(
                "q end  s sort  / filter  p pause  Tab view  Enter details  ? help{filter}  every {interval}s"
            ))
        }
    }
}

fn draw_help(frame: &mut Frame<'_>, area: Rect, theme: Theme) {
    let lines: Vec<Line<'_>> =
        HELP.iter().map(|(key, what)| Line::raw(format!("{key:<15} {what}"))).collect();
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(area.height);
    let width = 48.min(area.width);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title("keys").title_style(theme.head());
    frame.render_widget(Paragraph::new(lines).block(block), place);
}

#[cfg(test)]
mod tests;
