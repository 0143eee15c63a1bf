//! The table: a row for each shape and transport.

use exs_examples::fail::{During, Failure};
use exs_examples::out;
use serde::Serialize;

use super::sockets::Carrier;

/// A figure.
pub(super) struct Row {
    pub(super) name: String,
    /// The name of the shape whose figure this one is compared with.
    pub(super) base: String,
    pub(super) carrier: Carrier,
    /// Messages, answers or connections in a second.
    pub(super) rate: f64,
}

#[derive(Serialize)]
struct Record<'a> {
    test: &'static str,
    shape: &'a str,
    transport: String,
    per_second: f64,
    /// Compared with one thread, or one pair; 1 for these. Null where that was not measured.
    gain: Option<f64>,
    /// Compared with plain TCP in the same shape. Null where that was not measured.
    of_tcp: Option<f64>,
}

/// Prints rows as they come, and remembers them for ratios.
pub(super) struct Table {
    json: bool,
    rows: Vec<Row>,
}

impl Table {
    pub(super) fn new(json: bool) -> Result<Table, Failure> {
        if !json {
            out!("{:32} {:6} {:>12} {:>6} {:>7}", "shape", "", "a second", "gain", "of tcp")?;
        }
        Ok(Table { json, rows: Vec::new() })
    }

    fn find(&self, name: &str, carrier: Carrier) -> Option<f64> {
        self.rows.iter().find(|r| r.name == name && r.carrier == carrier).map(|r| r.rate)
    }

    pub(super) fn print(&mut self, row: Row) -> Result<(), Failure> {
        let rate = row.rate;
        self.rows.push(row);
        let row = &self.rows[self.rows.len() - 1];
        let gain = self.find(&row.base, row.carrier).map(|base| rate / base);
        let of_tcp = self.find(&row.name, Carrier::Tcp).map(|tcp| rate / tcp);
        if self.json {
            let transport = row.carrier.to_string();
            let record = Record {
                test: "cores",
                shape: &row.name,
                transport,
                per_second: rate,
                gain,
                of_tcp,
            };
            out!("{}", serde_json::to_string(&record).during("JSON")?)?;
        } else {
            let ratio = |r: Option<f64>| r.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}"));
            let carrier = row.carrier.to_string();
            out!(
                "{:32} {carrier:6} {rate:12.0} {:>6} {:>7}",
                row.name,
                ratio(gain),
                ratio(of_tcp)
            )?;
        }
        Ok(())
    }
}
