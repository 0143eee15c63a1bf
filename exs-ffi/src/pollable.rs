//! What poll(2), select(2) and epoll find at the descriptor of an EXS socket.
//!
//! The descriptor is one end of a socketpair(2), and the library sets what the kernel reports of it
//! (`pair`). This file decides when:
//! - A socket is *watched* while its state is shown: the thread that moves its data calls
//!   [`Watch::changed`] when there is something new. That thread shows it, so it wakes a program in
//!   poll(2) without a detour.
//! - A receiving call, which has the descriptor, takes back what is shown and no longer true.
//!
//! # Why no change is missed
//! A thread changes what is shown under the lock of the face. It takes that lock, reads the state of
//! the socket (`raw::standing`, under the engine's lock), shows it, and releases the lock. So of two
//! threads the second shows a state that is at least as new. The engine calls for each change after
//! the last state that was read; hence the state that is read last is the newest.
//!
//! An edge (EPOLLET) needs more: a program that has read less than it had room for waits for the
//! next edge without asking again. Data that arrive after that read give an edge, even if a message
//! still lies there: the state has the number of arrivals, and the library sends a message for each
//! number that it has not shown. Data that came before the read are part of it.
//!
//! After a false POLLIN a program makes a call that fails with EAGAIN, or waits if the program did not
//! set O_NONBLOCK. So a call that finds nothing more takes the messages back before it returns. The
//! engine's threads, which only add messages, read the state before they do.
//!
//! Each change costs some system calls, and a program that receives through a queue does not need
//! them. So the first receive or accept with a queue ends the showing (`AUTO`), unless the program has
//! asked for it (`ON`, by EXS_SO_POLLABLE).

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use exs::raw::{self, Standing, Watch};

use crate::error::Result;
use crate::pair::{End, MOST_SHOWN, Pair};
use crate::poll::inner;
use crate::sockets::{self, Entry, Target};

/// Nothing is shown.
const OFF: u8 = 0;
/// Until something is received through a queue.
const AUTO: u8 = 1;
/// The program has asked for it.
const ON: u8 = 2;

/// The number of sockets that are `ON`. The library looks at the events of receives only while there are
/// some.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// The number of messages from which a receive that leaves data takes all but one back.
const MANY: usize = 32;

/// What is shown of a socket.
pub(crate) struct Face {
    mode: AtomicU8,
    shown: Mutex<Shown>,
}

/// Why a descriptor is not writable.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Plug {
    /// A connect is under way.
    Dialling = 1,
    /// It is a listener's.
    Listening = 2,
    /// A send has found no room for all of its bytes.
    Full = 4,
}

struct Shown {
    pair: Pair,
    /// The reasons that hold, each [`Plug`] a bit.
    plugs: u8,
    /// The number of arrivals that was shown last.
    arrived: u64,
}

impl Drop for Face {
    fn drop(&mut self) {
        if *self.mode.get_mut() == ON {
            ASKED.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Face {
    pub(crate) fn new(pair: Pair) -> Face {
        Face { mode: AtomicU8::new(OFF), shown: Mutex::new(Shown { pair, plugs: 0, arrived: 0 }) }
    }

    fn mode(&self) -> u8 {
        self.mode.load(Ordering::Acquire)
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `close`, which closes a copy of the program's end, and says whether it was the last.
    /// Meanwhile no copy of the library's own is made.
    pub(crate) fn closes(
        &self,
        unread: bool,
        close: impl FnOnce() -> Result<c_int>,
    ) -> Result<bool> {
        let shown = self.shown();
        close()?;
        Ok(shown.pair.is_closed(unread))
    }

    /// True if the program has closed the last copy of its end.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.shown().pair.is_hung_up()
    }

    /// True if the descriptor shows that the connection broke.
    pub(crate) fn is_broken(&self) -> bool {
        self.shown().pair.is_broken()
    }

    /// For EXS_SO_POLLABLE.
    pub(crate) fn is_shown(&self) -> bool {
        self.mode() != OFF
    }
}

/// Shows what the engine reports.
struct Shower(Weak<Entry>);

impl Watch for Shower {
    fn changed(&self) {
        if let Some(entry) = self.0.upgrade() {
            show(&entry, None);
        }
    }
}

fn watch(entry: &Entry, on: bool) {
    let shower = on.then(|| Arc::new(Shower(entry.me.clone())) as Arc<dyn Watch>);
    raw::watch(&entry.socket, shower);
}

/// Begins to show a new socket, which has its descriptor now.
pub(crate) fn begin(entry: &Entry) {
    entry.face.mode.store(AUTO, Ordering::Release);
    watch(entry, true);
    show(entry, None);
}

/// EXS_SO_POLLABLE.
pub(crate) fn set(entry: &Entry, fd: c_int, on: bool) -> Result<()> {
    inner()?;
    let before = entry.face.mode.swap(if on { ON } else { OFF }, Ordering::AcqRel);
    match (before == ON, on) {
        (false, true) => _ = ASKED.fetch_add(1, Ordering::AcqRel),
        (true, false) => _ = ASKED.fetch_sub(1, Ordering::AcqRel),
        _ => {}
    }
    if on {
        watch(entry, true);
        refresh(entry, fd);
    } else {
        clear(entry, fd);
    }
    Ok(())
}

/// Ends the showing of an `AUTO` socket, as a receive or an accept was posted with a queue.
pub(crate) fn by_queue(entry: &Entry, fd: c_int) {
    if entry.face.mode() == AUTO {
        let turned =
            entry.face.mode.compare_exchange(AUTO, OFF, Ordering::AcqRel, Ordering::Acquire);
        if turned.is_ok() {
            clear(entry, fd);
        }
    }
}

/// Shows nothing any more, except for an end, which stays.
fn clear(entry: &Entry, fd: c_int) {
    watch(entry, false);
    let mut shown = entry.face.shown();
    let all = shown.pair.lying().0;
    shown.pair.take_back(fd, all);
    shown.plugs = 0;
    shown.pair.unplug();
}

/// Shows the state after a receive or an accept, also after one that found nothing.
pub(crate) fn refresh(entry: &Entry, fd: c_int) {
    show(entry, Some(fd));
}

/// The same, after an event of a socket that is known by its number.
pub(crate) fn taken(fd: c_int) {
    if ASKED.load(Ordering::Relaxed) > 0
        && let Ok(Target::Exs(entry)) = sockets::find(fd)
    {
        refresh(&entry, fd);
    }
}

fn end_of(now: &Standing) -> End {
    match (now.broken, now.ended, now.shut) {
        (true, ..) => End::Broken,
        (_, true, true) => End::Both,
        (_, true, false) => End::Peers,
        _ => End::None,
    }
}

/// Shows the state of a socket. Takes back what is no longer true only with `fd`.
fn show(entry: &Entry, fd: Option<c_int>) {
    let mut shown = entry.face.shown();
    if entry.face.mode() == OFF {
        return;
    }
    if let Some(fd) = fd {
        shown.pair.note(fd);
    }
    let now = raw::standing(&entry.socket);
    let news = std::mem::replace(&mut shown.arrived, now.arrived) != now.arrived;
    let (end, pair) = (end_of(&now), &mut shown.pair);
    let bytes = usize::try_from(now.available).unwrap_or(usize::MAX).min(MOST_SHOWN);
    let (count, lying) = pair.lying();
    // At an end the descriptor is readable by itself.
    let data = now.readable && (end == End::None || now.available > 0);
    match fd {
        _ if data && pair.is_open() && (count == 0 || news) => {
            pair.put(bytes.saturating_sub(lying))
        }
        Some(fd) if !data && count > 0 => {
            pair.take_back(fd, count);
            pair.remind();
        }
        _ => {}
    }
    if let Some(fd) = fd.filter(|_| data) {
        // FIONREAD must not report more than there is.
        let (count, lying) = pair.lying();
        if pair.is_open() && (lying != bytes || count > MANY) {
            pair.put(bytes);
            pair.take_back(fd, count);
        } else if lying > bytes {
            pair.shorten(fd, bytes);
        }
    }
    pair.end(end);
    if now.readable && pair.is_open() && pair.lying().0 == 0 {
        pair.put(0);
    }
}

/// Makes the descriptor not writable, until [`unplug`] has taken each reason away.
pub(crate) fn plug(entry: &Entry, fd: c_int, why: Plug) {
    let mut shown = entry.face.shown();
    if entry.face.mode() != OFF {
        shown.plugs |= why as u8;
        shown.pair.plug(fd);
    }
}

/// Takes a reason away.
pub(crate) fn unplug(entry: &Entry, why: Plug) {
    let mut shown = entry.face.shown();
    shown.plugs &= !(why as u8);
    if shown.plugs == 0 {
        shown.pair.unplug();
    }
}

/// Notes that a call has reported the error that ended the connection. From then on poll(2) does not
/// report POLLERR, as with other sockets.
pub(crate) fn forgive(entry: &Entry) {
    entry.face.shown().pair.forgive();
}
