use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::*;
use crate::columns::Choice;
use crate::model::tests::text;
use crate::source::Trouble;
use crate::world::World;
use crate::world::tests::found;

fn app() -> App {
    let mut app = App::new(Choice::default(), Duration::from_secs(1));
    let first = World::new(found(&[text(7, 1_000_000, 5000, 70)]), &World::default());
    let second = [text(7, 2_000_000, 6024, 70), text(9, 1_000_000, 1 << 30, 0)];
    app.show(World::new(found(&second), &first));
    app
}

/// The lines of a screen of this size, without spaces at their ends.
fn screen(
    app: &App,
    width: u16,
    height: u16,
    theme: Theme,
) -> (Vec<String>, Terminal<TestBackend>) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app, theme)).unwrap();
    let buffer = terminal.backend().buffer();
    let lines = (0..height).map(|y| {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        line.trim_end().to_owned()
    });
    (lines.collect(), terminal)
}

fn lines(app: &App, width: u16, height: u16) -> Vec<String> {
    screen(app, width, height, Theme::new(true)).0
}

fn press(app: &mut App, code: KeyCode) {
    app.press(KeyEvent::from(code));
}

#[test]
fn sockets_stand_below_each_other() {
    let lines = lines(&app(), 140, 10);
    assert!(lines[0].starts_with("exs-top sockets  2 processes  4 sockets  TX 1.0k/s  RX 0/s"));
    let head: Vec<&str> = lines[1].split_whitespace().collect();
    let wanted = [
        "PID", "PROCESS", "STATE", "VIA", "LOCAL", "PEER", "TX/s", "RX/s", "OPS/s", "SENT",
        "RECEIVED", "FLIGHT", "STALLS", "WAITS",
    ];
    assert_eq!(head, wanted);
    let row: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(
        row[..8],
        ["7", "server", "open", "soft", "192.0.2.1:7471", "192.0.2.2:40000", "1.0k", "0"]
    );
    assert_eq!(row.last(), Some(&"peer"));
    // Numbers end below each other.
    assert_eq!(lines[1].find("TX/s").map(|at| at + 4), lines[2].find("1.0k").map(|at| at + 4));
    assert!(lines[9].starts_with("q end  s sort") && lines[9].ends_with("every 1s"), "{lines:?}");
}

#[test]
fn a_narrow_and_low_screen_shows_what_matters() {
    let lines_of = lines(&app(), 40, 5);
    let head: Vec<&str> = lines_of[1].split_whitespace().collect();
    assert_eq!(head, ["PID", "VIA", "PEER", "TX/s", "RX/s", "WAITS"]);
    for (width, height) in [(1, 1), (3, 2), (10, 3), (200, 1), (0, 0)] {
        let mut app = app();
        press(&mut app, KeyCode::Enter);
        press(&mut app, KeyCode::Char('?'));
        lines(&app, width, height);
    }
}

#[test]
fn a_process_has_its_figures_above_its_sockets() {
    let mut app = app();
    press(&mut app, KeyCode::Enter);
    let shown = lines(&app, 120, 24);
    assert!(shown[0].starts_with("exs-top process 7"), "{shown:?}");
    assert!(shown[1].starts_with("server (pid 7, uid 0) EXS 9.8.7, up 2s, 2 shards"), "{shown:?}");
    assert!(
        shown.iter().any(|l| l.starts_with("soft soft: 1 connections, 5.9k sent")),
        "{shown:?}"
    );
    assert_eq!(
        shown.iter().filter(|l| l.contains("192.0.2.1") || l.contains("listening")).count(),
        2
    );
    // It ends while it is shown.
    app.show(World::new(found(&[text(9, 2_000_000, 1, 0)]), &World::default()));
    assert!(lines(&app, 120, 24).iter().any(|l| l.contains("has ended")));
}

#[test]
fn what_cannot_be_read_is_said_and_an_empty_host_has_a_hint() {
    let mut app = app();
    app.world.troubles = vec![Trouble { path: "/x/5.sock".into(), why: "late\u{1b}[2J".into() }];
    let shown = lines(&app, 100, 12);
    assert_eq!(shown[10], "/x/5.sock: late?[2J");
    app.show(World::default());
    assert!(lines(&app, 100, 12)[1].contains("EXS_STATS"));
}

#[test]
fn help_filter_and_pause_are_seen() {
    let mut app = app();
    press(&mut app, KeyCode::Char('?'));
    assert!(lines(&app, 100, 24).iter().any(|l| l.contains("sort by the next column")));
    press(&mut app, KeyCode::Esc);
    press(&mut app, KeyCode::Char('/'));
    press(&mut app, KeyCode::Char('x'));
    let shown = lines(&app, 100, 24);
    assert_eq!(shown[23], "filter: x_");
    assert!(shown[1].contains("no row with this text"));
    press(&mut app, KeyCode::Enter);
    press(&mut app, KeyCode::Char('p'));
    let shown = lines(&app, 100, 24);
    assert!(shown[0].contains("PAUSED") && shown[23].contains("filter: x"), "{shown:?}");
}

#[test]
fn no_colour_is_used_where_none_is_wanted() {
    let coloured = |theme| {
        let (_, terminal) = screen(&app(), 120, 12, theme);
        let buffer = terminal.backend().buffer();
        buffer.content().iter().filter(|cell| cell.fg != Color::Reset).count()
    };
    assert!(coloured(Theme::new(true)) > 0);
    assert_eq!(coloured(Theme::new(false)), 0);
}
