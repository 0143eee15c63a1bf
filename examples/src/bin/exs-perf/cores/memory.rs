//! Memory of what does nothing, in bytes.

use exs::{Completion, EventQueue, RecvFlags, Socket, Token};
use exs_tools::fail::{During, Failure};

use super::carrier::Carrier;
use super::sockets::{self, Listener};
use crate::idle;
use crate::job::{Job, Test};
use crate::usage::{allow_connections, resident};

/// Operations that each queue can have.
const DEPTH: usize = 64;

/// Each of many idle connections, in the process that has more for it.
pub(super) fn of_connection(carrier: Carrier, connections: u32) -> Result<f64, Failure> {
    let job = Job { way: carrier.into(), connections, ..Job::new(Test::Idle) };
    let idles = idle::measure("demo", &job)?;
    Ok(idles.bytes_local.max(idles.bytes_remote))
}

/// Each of many queues that carries nothing any more: a connection over this transport has begun and
/// ended there. Without a transport the queues were only made.
pub(super) fn of_queue(carrier: Option<Carrier>, queues: u32) -> Result<f64, Failure> {
    allow_connections(queues)?;
    let listener = match carrier {
        Some(carrier) => Some((Listener::new(carrier)?, carrier)),
        None => None,
    };
    let make = || {
        let queue = EventQueue::new(DEPTH).during("event queue")?;
        match &listener {
            Some((Listener::Exs(door, _), carrier)) => use_once(&queue, door, *carrier)?,
            Some((Listener::Tcp(_), _)) => {
                return Err(Failure("plain TCP has no event queue: leave out tcp".to_owned()));
            }
            None => {}
        }
        Ok(queue)
    };
    // The first queue also makes the state that all queues share: it is not counted.
    let first = make()?;
    let before = resident()?;
    let kept = (0..queues).map(|_| make()).collect::<Result<Vec<_>, Failure>>()?;
    let after = resident()?;
    drop((first, kept));
    Ok(after.saturating_sub(before) as f64 / f64::from(queues))
}

/// Makes a connection whose ends are both of this queue, sends a byte, and closes it.
fn use_once(queue: &EventQueue, door: &Socket, carrier: Carrier) -> Result<(), Failure> {
    let Carrier::Exs(transport) = carrier else { return Ok(()) };
    let asks = sockets::socket(transport)?;
    door.accept(queue, Token(0)).during("accept")?;
    asks.connect(queue, Token(1), door.local_addr()?).during("connect")?;
    let mut answers = None;
    for _ in 0..2 {
        if let Completion::Accept { socket, .. } =
            queue.next()?.into_completion().during("connect")?
        {
            answers = Some(socket);
        }
    }
    let answers = answers.ok_or_else(|| Failure("nothing was accepted".to_owned()))?;
    answers.recv(queue, Token(2), vec![0; 1], RecvFlags::WAITALL).during("recv")?;
    asks.send(queue, Token(3), vec![1]).during("send")?;
    for _ in 0..2 {
        queue.next()?.into_result().during("a byte")?;
    }
    asks.close(queue, Token(4)).during("close")?;
    answers.close(queue, Token(5)).during("close")?;
    for _ in 0..2 {
        queue.next()?.into_result().during("close")?;
    }
    Ok(())
}
