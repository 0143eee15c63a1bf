//! One table, or one JSON object, for scripts.

use std::time::Duration;

use exs_tools::out::Lost;
use exs_tools::{out, tell};
use serde_json::{Map, Value, json};

use crate::Args;
use crate::columns::{Choice, Table};
use crate::source::Source;
use crate::world::{Rates, World};

/// What a user does if no process is found.
pub(crate) const HINT: &str =
    "no process offers its figures: start one with EXS_STATS=on in its environment";

/// Prints what there is now, and ends.
pub(crate) fn run(args: &Args, source: &Source) -> Result<u8, (u8, String)> {
    let mut world = World::new(source.read(), &World::default());
    if let Some(interval) = args.interval {
        pause(interval);
        world = World::new(source.read(), &world);
    }
    let filter = args.filter.clone().unwrap_or_default();
    let choice = Choice { sort: args.sort, filter, ..Choice::default() };
    let printed = match args.json {
        true => out!("{}", object(&world, &choice)),
        false => text(&world, &choice),
    };
    printed.map_err(|e| (1, e.to_string()))?;
    for trouble in &world.troubles {
        tell!("exs-top: {}: {}", trouble.path.display(), trouble.why);
    }
    match (world.processes.is_empty(), source.pid()) {
        (false, _) => Ok(0),
        (true, None) if world.troubles.is_empty() => Err((1, HINT.to_owned())),
        (true, None) => Ok(1),
        (true, Some(pid)) => Err((1, format!("the process {pid} does not offer its figures"))),
    }
}

fn pause(interval: Duration) {
    // sleep-ok: rates are measured over this time
    std::thread::sleep(interval);
}

fn text(world: &World, choice: &Choice) -> Result<(), Lost> {
    if world.processes.is_empty() {
        return Ok(());
    }
    let table = Table::of_sockets(world, choice);
    let widths = table.widths();
    let line = |cells: &[&str]| {
        let cells = cells.iter().zip(&widths).zip(&table.right);
        let padded = cells.map(|((cell, width), right)| match right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    out!("{}", line(&table.titles))?;
    for row in &table.rows {
        out!("{}", line(&row.cells.iter().map(String::as_str).collect::<Vec<_>>()))?;
    }
    Ok(())
}

/// A line of a snapshot, with rates.
fn with_rates(raw: &Map<String, Value>, rates: Option<Rates>) -> Map<String, Value> {
    let mut object = raw.clone();
    object.remove("type");
    if let Some(r) = rates {
        let rates = [
            ("sent_bytes_per_s", Some(r.sent)),
            ("received_bytes_per_s", Some(r.received)),
            ("operations_per_s", r.operations),
            ("stalls_per_s", r.stalls),
        ];
        let known =
            rates.into_iter().filter_map(|(name, rate)| Some((name.to_owned(), rate?.into())));
        object.insert("rates".to_owned(), Value::Object(known.collect()));
    }
    object
}

fn object(world: &World, choice: &Choice) -> Value {
    let chosen = Table::of_sockets(world, choice).rows;
    let all = choice.filter.is_empty();
    let processes = world.processes.iter().map(|p| {
        let pid = p.line.data.pid;
        let mut object = with_rates(&p.line.raw, p.rates);
        let is_chosen = |id: &str| all || chosen.iter().any(|row| row.pid == pid && row.id == id);
        let sockets = p.sockets.iter().filter(|s| is_chosen(&s.line.data.id));
        let sockets = sockets.map(|s| with_rates(&s.line.raw, s.rates).into());
        // The number of them is that of the list.
        object.insert("sockets".to_owned(), Value::Array(sockets.collect()));
        Value::Object(object)
    });
    let troubles = world.troubles.iter();
    let troubles = troubles.map(|t| json!({ "path": t.path.display().to_string(), "why": t.why }));
    json!({
        "processes": processes.collect::<Vec<_>>(),
        "troubles": troubles.collect::<Vec<_>>(),
    })
}
