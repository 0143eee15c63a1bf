//! The state of the live view, and what keys do to it.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::columns::{Choice, Row, Sort, Table};
use crate::world::World;

/// What the screen shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Screen {
    /// The sockets of all processes.
    Sockets,
    /// The processes.
    Processes,
    /// One process with its sockets.
    Process(u32),
}

/// What the keys are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Commands.
    Commands,
    /// The text of the filter.
    Filter,
    /// Any key closes the help.
    Help,
}

/// The order in which `s` goes through the columns.
const SORTS: [Option<Sort>; 10] = [
    None,
    Some(Sort::Tx),
    Some(Sort::Rx),
    Some(Sort::Ops),
    Some(Sort::Sent),
    Some(Sort::Received),
    Some(Sort::Flight),
    Some(Sort::Stalls),
    Some(Sort::Peer),
    Some(Sort::Via),
];

/// The shortest and the longest time between two snapshots.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(60));

/// The live view.
pub(crate) struct App {
    pub(crate) screen: Screen,
    pub(crate) mode: Mode,
    pub(crate) choice: Choice,
    /// The world that is shown.
    pub(crate) world: World,
    /// The picture stands still.
    pub(crate) paused: bool,
    pub(crate) interval: Duration,
    /// The selected row.
    pub(crate) selected: usize,
    /// The program ends.
    pub(crate) over: bool,
}

impl App {
    pub(crate) fn new(choice: Choice, interval: Duration) -> App {
        App {
            screen: Screen::Sockets,
            mode: Mode::Commands,
            choice,
            world: World::default(),
            paused: false,
            interval,
            selected: 0,
            over: false,
        }
    }

    /// The table of the screen.
    pub(crate) fn table(&self) -> Table {
        match self.screen {
            Screen::Sockets => Table::of_sockets(&self.world, &self.choice),
            Screen::Processes => Table::of_processes(&self.world, &self.choice),
            Screen::Process(pid) => {
                let choice = Choice { pid: Some(pid), ..self.choice.clone() };
                Table::of_sockets(&self.world, &choice)
            }
        }
    }

    /// Shows a new world, unless the view is paused. The selection stays with its row.
    pub(crate) fn show(&mut self, world: World) {
        if self.paused {
            return;
        }
        let before = self.selected_row();
        self.world = world;
        self.select_again(before);
    }

    fn selected_row(&self) -> Option<Row> {
        self.table().rows.into_iter().nth(self.selected)
    }

    fn select_again(&mut self, before: Option<Row>) {
        let rows = self.table().rows;
        let same =
            |row: &Row| before.as_ref().is_some_and(|b| (b.pid, &b.id) == (row.pid, &row.id));
        let found = rows.iter().position(same);
        self.selected = found.unwrap_or(self.selected).min(rows.len().saturating_sub(1));
    }

    /// A key was pressed.
    pub(crate) fn press(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            self.over = true;
            return;
        }
        match self.mode {
            Mode::Commands => self.command(key.code),
            Mode::Filter => self.edit(key.code),
            Mode::Help => self.mode = Mode::Commands,
        }
    }

    fn edit(&mut self, key: KeyCode) {
        let before = self.selected_row();
        match key {
            KeyCode::Enter => self.mode = Mode::Commands,
            KeyCode::Esc => {
                self.choice.filter.clear();
                self.mode = Mode::Commands;
            }
            KeyCode::Backspace => drop(self.choice.filter.pop()),
            KeyCode::Char(c) => self.choice.filter.push(c),
            _ => {}
        }
        self.select_again(before);
    }

    fn command(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char('q') => self.over = true,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('s') => self.sort_next(),
            KeyCode::Char('r') => self.resort(|choice| choice.reverse = !choice.reverse),
            KeyCode::Char('+') => self.interval = (self.interval * 2).min(INTERVALS.1),
            KeyCode::Char('-') => self.interval = (self.interval / 2).max(INTERVALS.0),
            KeyCode::Tab => self.go(match self.screen {
                Screen::Sockets => Screen::Processes,
                Screen::Processes | Screen::Process(_) => Screen::Sockets,
            }),
            KeyCode::Enter => {
                if let Some(row) = self.selected_row() {
                    self.go(Screen::Process(row.pid));
                }
            }
            KeyCode::Esc if !self.choice.filter.is_empty() => self.edit(KeyCode::Esc),
            KeyCode::Esc => self.go(Screen::Sockets),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-10),
            KeyCode::PageDown => self.step(10),
            KeyCode::Home => self.step(isize::MIN),
            KeyCode::End => self.step(isize::MAX),
            _ => {}
        }
    }

    fn go(&mut self, screen: Screen) {
        if self.screen != screen {
            (self.screen, self.selected) = (screen, 0);
        }
    }

    fn resort(&mut self, change: impl FnOnce(&mut Choice)) {
        let before = self.selected_row();
        change(&mut self.choice);
        self.select_again(before);
    }

    fn sort_next(&mut self) {
        let at = SORTS.iter().position(|sort| *sort == self.choice.sort).unwrap_or(0);
        self.resort(|choice| choice.sort = SORTS[(at + 1) % SORTS.len()]);
    }

    fn step(&mut self, by: isize) {
        let last = self.table().rows.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::text;
    use crate::world::tests::found;

    fn app() -> App {
        let mut app = App::new(Choice::default(), Duration::from_secs(1));
        let found = found(&[text(7, 1_000_000, 5000, 70), text(9, 1_000_000, 9000, 70)]);
        app.show(World::new(found, &World::default()));
        app
    }

    fn press(app: &mut App, keys: &str) {
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '\u{1b}' => KeyCode::Esc,
                c => KeyCode::Char(c),
            };
            app.press(KeyEvent::from(code));
        }
    }

    #[test]
    fn keys_choose_what_is_shown() {
        let mut app = app();
        press(&mut app, "jj\n");
        assert_eq!((app.screen, app.table().rows.len()), (Screen::Process(9), 2));
        press(&mut app, "\u{1b}\t");
        assert_eq!(app.screen, Screen::Processes);
        press(&mut app, "\t/LISTEN\n");
        assert_eq!((app.mode, app.table().rows.len()), (Mode::Commands, 2));
        press(&mut app, "\u{1b}");
        assert_eq!((app.choice.filter.as_str(), app.table().rows.len()), ("", 4));
        press(&mut app, "?");
        assert_eq!(app.mode, Mode::Help);
        press(&mut app, "qssr+");
        assert_eq!((app.mode, app.over), (Mode::Commands, false), "a key closes the help");
        assert_eq!((app.choice.sort, app.choice.reverse), (Some(Sort::Rx), true));
        assert_eq!(app.interval, Duration::from_secs(2));
        press(&mut app, "q");
        assert!(app.over);
    }

    #[test]
    fn the_selection_stays_with_its_row() {
        let mut app = app();
        press(&mut app, "jj");
        assert_eq!(app.selected_row().unwrap().pid, 9);
        // The first process ends.
        app.show(World::new(found(&[text(9, 2_000_000, 9000, 70)]), &app.world.clone()));
        assert_eq!((app.selected, app.selected_row().unwrap().pid), (0, 9));
        app.show(World::default());
        assert_eq!((app.selected, app.selected_row()), (0, None));
        press(&mut app, "jk\n");
        assert_eq!(app.screen, Screen::Sockets, "there is no process to show");
    }

    #[test]
    fn a_paused_picture_stands_still() {
        let mut app = app();
        press(&mut app, "p");
        app.show(World::default());
        assert_eq!(app.world.processes.len(), 2);
        press(&mut app, " ");
        app.show(World::default());
        assert!(app.world.processes.is_empty());
    }
}
