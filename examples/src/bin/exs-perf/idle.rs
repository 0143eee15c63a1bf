//! What connections cost that do nothing.
//!
//! The first connection, and all that is made for it once, is not counted. Nor is memory of
//! the kernel, which has socket buffers for each TCP connection.

use exs_tools::fail::{During, Failure};
use exs_tools::out;
use serde::Serialize;

use crate::cli::Idle;
use crate::client::{call, end, job};
use crate::control::{Reply, Request, unexpected};
use crate::job::{Job, Test};
use crate::links::connect;
use crate::usage::{allow_connections, resident};

/// What is printed.
#[derive(Debug, Serialize)]
pub(crate) struct Idles {
    test: &'static str,
    transport: String,
    connections: u32,
    /// Of this process and the server: bytes for each connection.
    pub(crate) bytes_local: f64,
    pub(crate) bytes_remote: f64,
}

pub(crate) fn run(args: &Idle) -> Result<(), Failure> {
    let job = Job { connections: args.connections, ..job(Test::Idle, &args.path) };
    let idles = measure(&args.server, &job)?;
    if args.json {
        out!("{}", serde_json::to_string(&idles).during("JSON")?)?;
    } else {
        out!(
            "{} idle connections by {}: {:.0} bytes of memory each here, {:.0} at the server",
            idles.connections,
            idles.transport,
            idles.bytes_local,
            idles.bytes_remote
        )?;
    }
    Ok(())
}

/// Makes the connections of the job, and looks at the memory of both sides.
pub(crate) fn measure(server: &str, job: &Job) -> Result<Idles, Failure> {
    let (mut control, server) = call(server)?;
    job.check()?;
    allow_connections(job.connections)?;
    control.send(&Request::Run(job.clone()))?;
    let place = match control.reply()? {
        Reply::Opened(place) => place,
        other => return Err(unexpected(&other)),
    };
    let (_, addr) = control.addrs()?;
    let mut before = 0;
    let links = connect(job, addr, &place, || {
        before = resident()?;
        Ok(())
    })
    .map_err(|e| control.blame(e))?;
    let (ours, theirs) = match control.reply()? {
        Reply::Idle { before: b, after } => {
            (resident()?.saturating_sub(before), after.saturating_sub(b))
        }
        other => return Err(unexpected(&other)),
    };
    let others = f64::from(job.connections - 1);
    let idles = Idles {
        test: "idle",
        transport: links.transport(job.way),
        connections: job.connections,
        bytes_local: ours as f64 / others,
        bytes_remote: theirs as f64 / others,
    };
    drop(links);
    end(control, server)?;
    Ok(idles)
}
