//! What a session is doing now, for readers outside of the process.

use super::Session;
use super::credits::Level;
use super::proto::Proto;

/// How far the connection of a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The first message of the start-up is outstanding.
    Starting,
    /// Both directions are open.
    Open,
    /// One direction has ended.
    HalfClosed,
    /// The peer has closed, or the connection has ended in order.
    Ended,
    /// Something other than a close in order has ended the connection.
    Broken,
}

/// Why data or messages of a session cannot leave now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The peer must return credits.
    pub credits: bool,
    /// The send queue is full, or a message in it waits for room with the peer.
    pub room: bool,
    /// The peer must post a receive, or take data out of its ring or stash.
    pub peer: bool,
}

/// What a session is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// How far the connection is.
    pub progress: Progress,
    /// Sends that have not ended, and shutdowns.
    pub sends: usize,
    /// Receives that have not ended. A receive into several pieces counts once for each.
    pub recvs: usize,
    /// READs, WRITEs and atomic operations that have not ended.
    pub one_sided: usize,
    /// Bytes that a receive would get without waiting. Of a seqpacket socket, those of the next
    /// message.
    pub available: u64,
    /// Messages that this side may send now.
    pub credits: u16,
    /// Receives that the peer keeps posted. `credits` is at most this.
    pub credits_max: u16,
    /// Why data or messages cannot leave now.
    pub waits: Waits,
}

impl Proto {
    /// Data wait for a receive of the peer's, or for room in its ring or stash.
    fn awaits_peer(&self) -> bool {
        match self {
            Proto::Stream(s) => s.tx.has_unsent() && !s.tx.wants_transfer(),
            Proto::Packet(p) => p.tx.has_unsent() && !p.tx.wants_transfer(),
        }
    }
}

impl Session {
    /// What the session is doing now.
    pub fn activity(&self) -> Activity {
        let standing = self.standing();
        let progress = match () {
            () if standing.broken => Progress::Broken,
            () if self.life.is_over() || self.life.peer_closed() => Progress::Ended,
            () if self.life.awaits_ready() => Progress::Starting,
            () if standing.ended || standing.shut => Progress::HalfClosed,
            () => Progress::Open,
        };
        let talks = self.life.may_talk();
        let (credits, room) = self.out.stalls();
        let (left, theirs) = self.credits.left();
        let peer = !self.sender.has_job() && self.proto.as_ref().is_some_and(Proto::awaits_peer);
        Activity {
            progress,
            sends: self.sender.in_flight(),
            recvs: self.receiver.in_flight(),
            one_sided: self.sided.in_flight(),
            available: standing.available,
            credits: left,
            credits_max: theirs,
            waits: Waits {
                credits: talks && credits && !self.credits.may(Level::Data),
                room: talks && (room || self.sender.awaits_room()),
                peer: talks && peer,
            },
        }
    }
}
