//! The live view: the terminal, the keys, and a thread that reads snapshots.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use crate::Args;
use crate::app::App;
use crate::columns::Choice;
use crate::source::{Found, Source};
use crate::view::{Theme, draw};
use crate::world::World;

/// The time between two looks at keys and at new snapshots.
const TICK: Duration = Duration::from_millis(50);
/// The time between two snapshots, unless the command line says otherwise.
const INTERVAL: Duration = Duration::from_secs(1);

/// Shows the live view until the user ends it.
pub(crate) fn run(args: &Args, source: Source) -> Result<u8, (u8, String)> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err((2, "this is no terminal: --once prints a table".to_owned()));
    }
    if let Some(pid) = source.pid()
        && source.read().snapshots.is_empty()
    {
        return Err((1, format!("the process {pid} does not offer its figures")));
    }
    let filter = args.filter.clone().unwrap_or_default();
    let choice = Choice { sort: args.sort, filter, ..Choice::default() };
    let app = App::new(choice, args.interval.unwrap_or(INTERVAL));
    // A panic restores the terminal, too.
    let mut terminal = ratatui::try_init().map_err(|e| (1, format!("the terminal: {e}")))?;
    let result = watch(&mut terminal, app, source);
    ratatui::restore();
    result.map(|()| 0).map_err(|e| (1, format!("the terminal: {e}")))
}

fn watch(terminal: &mut DefaultTerminal, mut app: App, source: Source) -> io::Result<()> {
    let theme = Theme::of_environment();
    let (asks, found) = reader(source);
    let (mut asked, mut due) = (false, Instant::now());
    while !app.over {
        if !asked && Instant::now() >= due {
            // The thread ends with this one.
            asked = asks.send(()).is_ok();
        }
        if let Ok(found) = found.try_recv() {
            let world = World::new(found, &app.world);
            app.show(world);
            (asked, due) = (false, Instant::now() + app.interval);
        }
        terminal.draw(|frame| draw(frame, &app, theme))?;
        if event::poll(TICK)? {
            // After a change of its size, the next turn draws the picture anew.
            if let Event::Key(key) = event::read()? {
                app.press(key);
            }
        }
    }
    Ok(())
}

/// A thread that reads the snapshots of all processes each time that it is asked to. So keys work
/// while a process is late.
fn reader(source: Source) -> (Sender<()>, Receiver<Found>) {
    let (ask, asked) = channel::<()>();
    let (tell, told) = channel();
    std::thread::spawn(move || while asked.recv().is_ok() && tell.send(source.read()).is_ok() {});
    (ask, told)
}
