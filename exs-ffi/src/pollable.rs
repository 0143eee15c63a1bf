//! The readiness that poll(2), select(2) and epoll find at the descriptor of an EXS socket.
//!
//! The descriptor is one end of a socketpair(2), and the library makes its readiness through that
//! pair (`pair`). This file decides when:
//! - A socket is *watched* while the library shows its readiness: the thread that moves its data
//!   calls [`Watch::changed`] when something has changed. That thread shows it, so a program in
//!   poll(2) is woken directly.
//! - A call that receives knows the descriptor. It takes back readiness that is no longer
//!   true.
//!
//! # Why no change is missed
//! A thread changes what is shown under the lock of the face. It reads the state of the socket
//! (`raw::standing`, under the engine's lock) after it has that lock, and shows that state before
//! it releases the lock. So of two threads the second shows a state that is at least as new. The
//! engine calls for each change after the last state that was read. Hence the last state that is
//! read is the final one.
//!
//! An edge (EPOLLET) needs more: a program that has read less than it had room for waits for the
//! next edge without asking again. Data that arrive after that read give an edge, even if a
//! message lies there still: the state numbers the arrivals, and each number that was not shown
//! sends a message. Data that came before that read are part of it.
//!
//! A false POLLIN makes a program call, and the call fails with EAGAIN, or waits if the program
//! did not set O_NONBLOCK. So a call that finds nothing more takes the messages back before it
//! returns. The engine's threads, which only add messages, read the state first.
//!
//! Each change costs time, and a program that receives through a queue does not need it. So the
//! first receive or accept with a queue ends it (`AUTO`), unless the program has asked for it
//! (`ON`, by EXS_SO_POLLABLE).

use std::ffi::c_int;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use exs::__ffi::{self as raw, LoopId, ProcessNumber, RecvAtOnce, Standing, Watch};
use exs::Buffer;

use crate::arrivals::Arrivals;
use crate::error::Result;
use crate::pair::{End, MOST_SHOWN, Pair};
use crate::poll::inner;
use crate::ring_end::RingEnd;
use crate::sockets::{self, Entry, Target};

/// Nothing is shown.
const OFF: u8 = 0;
/// Shown until something is received through a queue.
const AUTO: u8 = 1;
/// Shown because the program has asked for it.
const ON: u8 = 2;

/// Number of sockets that are `ON`. While it is 0, receive events are not looked at.
static ASKED: ProcessNumber = ProcessNumber::new(0);

/// Messages at which a receive that leaves some data takes all but one back.
const MANY: usize = 32;

/// The readiness that is shown of a socket.
pub(crate) struct Face {
    mode: AtomicU8,
    /// The peer cannot make the descriptor readable.
    unringable: AtomicBool,
    /// Neither data nor an end are shown. It is stored under the lock of what is shown.
    clear: AtomicBool,
    shown: Mutex<Shown>,
}

/// The reason why a descriptor is not writable.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Plug {
    /// A connect is under way.
    Dialling = 1,
    /// The socket listens.
    Listening = 2,
    /// A send found no room for all of its bytes.
    Full = 4,
}

struct Shown {
    pair: Pair,
    /// The [`Plug`]s that hold, one bit each.
    plugs: u8,
    /// The number of the last arrival that was shown.
    arrived: u64,
}

impl Drop for Face {
    fn drop(&mut self) {
        if *self.mode.get_mut() == ON {
            ASKED.subtract(1);
        }
    }
}

impl Face {
    pub(crate) fn new(pair: Pair) -> Face {
        let shown = Mutex::new(Shown { pair, plugs: 0, arrived: 0 });
        let [unringable, clear] = [false; 2].map(AtomicBool::new);
        Face { mode: AtomicU8::new(OFF), unringable, clear, shown }
    }

    fn mode(&self) -> u8 {
        self.mode.load(Ordering::Acquire)
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `close`, which closes a copy of the program's end, and returns whether it was the
    /// last. Meanwhile the library makes no copy.
    pub(crate) fn closes(
        &self,
        unread: bool,
        close: impl FnOnce() -> Result<c_int>,
    ) -> Result<bool> {
        let shown = self.shown();
        close()?;
        Ok(shown.pair.is_closed(unread))
    }

    /// Returns true if the program has closed the last copy of its end.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.shown().pair.is_hung_up()
    }

    /// Shows the end of a broken connection, also if its peer does not run.
    pub(crate) fn insist(&self) {
        self.shown().pair.insist();
    }

    /// Returns true if it shows that the connection broke.
    pub(crate) fn is_broken(&self) -> bool {
        self.shown().pair.is_broken()
    }

    /// Returns true if the peer may be able to make the descriptor readable.
    fn can_ring(&self) -> bool {
        !self.unringable.load(Ordering::Relaxed) && self.mode() != OFF
    }

    /// Returns the library's end for the peer, if the peer may ring there.
    pub(crate) fn lend(&self) -> Option<Arc<OwnedFd>> {
        if self.can_ring() { self.shown().pair.lend() } else { None }
    }

    /// The peer cannot make the descriptor readable.
    pub(crate) fn note_unringable(&self) {
        self.unringable.store(true, Ordering::Relaxed);
    }

    /// Returns true if the peer may have a copy of the library's end.
    pub(crate) fn is_lent(&self) -> bool {
        !self.unringable.load(Ordering::Relaxed) && self.shown().pair.is_lent()
    }

    /// Returns true if neither data nor an end are shown. Without the lock of what is shown the answer
    /// can be old: another thread may show data meanwhile that this thread has just taken. Then the
    /// next call of the program, which finds nothing, takes the message back.
    fn is_clear(&self) -> bool {
        self.clear.load(Ordering::Acquire)
    }

    /// Takes a message that the library does not know of. Returns false if there is none.
    fn take_stray(&self, fd: c_int) -> bool {
        let shown = self.shown();
        shown.pair.is_lent() && shown.pair.lying().0 == 0 && shown.pair.take_stray(fd)
    }

    /// Returns the value of EXS_SO_POLLABLE.
    pub(crate) fn is_shown(&self) -> bool {
        self.mode() != OFF
    }
}

/// Shows changes that the engine reports.
struct Shower(Weak<Entry>);

impl Watch for Shower {
    fn changed(&self) {
        if let Some(entry) = self.0.upgrade() {
            show(&entry, None);
        }
    }

    fn changed_in(&self, event_loop: LoopId) {
        if let Some(entry) = self.0.upgrade()
            && !keep(&entry, event_loop)
        {
            show(&entry, None);
        }
    }
}

/// Keeps data in memory that an event loop has found. Returns false if the descriptor must show the
/// state.
fn keep(entry: &Entry, event_loop: LoopId) -> bool {
    let mut shown = entry.face.shown();
    if entry.face.mode() == OFF || !entry.face.is_clear() {
        return false;
    }
    let now = raw::kept_standing(&entry.socket);
    let data = now.readable && end_of(&now) == End::None;
    let kept = data && Arrivals::find(entry, event_loop, now.arrived);
    if kept {
        shown.arrived = now.arrived;
    }
    kept
}

/// Shows at the descriptor what an event loop keeps in memory: it serves the socket no longer.
pub(crate) fn end_keeping(entry: &Entry) {
    if entry.arrivals.note.is_set() {
        show(entry, None);
    }
}

/// A call has found nothing, and does not wait. A program with an event loop waits there.
pub(crate) fn found_nothing(entry: &Entry) {
    if !Arrivals::is_driven(entry) {
        raw::found_nothing(&entry.socket);
    }
}

fn watch(entry: &Entry, on: bool) {
    let shower = on.then(|| Arc::new(Shower(entry.me.clone())) as Arc<dyn Watch>);
    raw::watch(&entry.socket, shower);
}

/// Starts to show the readiness of a new socket.
pub(crate) fn begin(entry: &Entry) {
    entry.face.mode.store(AUTO, Ordering::Release);
    watch(entry, true);
    show(entry, None);
}

/// Sets EXS_SO_POLLABLE.
pub(crate) fn set(entry: &Entry, fd: c_int, on: bool) -> Result<()> {
    inner()?;
    let before = entry.face.mode.swap(if on { ON } else { OFF }, Ordering::AcqRel);
    match (before == ON, on) {
        (false, true) => _ = ASKED.add(1),
        (true, false) => ASKED.subtract(1),
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

/// Records that a receive or an accept was posted with a queue.
pub(crate) fn by_queue(entry: &Entry, fd: c_int) {
    if entry.face.mode() == AUTO {
        let turned =
            entry.face.mode.compare_exchange(AUTO, OFF, Ordering::AcqRel, Ordering::Acquire);
        if turned.is_ok() {
            clear(entry, fd);
        }
    }
}

/// Stops showing readiness. Only the end of a connection stays.
fn clear(entry: &Entry, fd: c_int) {
    watch(entry, false);
    Arrivals::end(entry);
    let rings = rings(entry);
    let mut shown = entry.face.shown();
    shown.pair.count_rings(rings);
    let all = shown.pair.lying().0;
    shown.pair.take_back(fd, all);
    shown.plugs = 0;
    shown.pair.unplug();
    entry.arrivals.note.clear();
}

/// Shows the present state, after a receive or an accept, also if it found nothing.
pub(crate) fn refresh(entry: &Entry, fd: c_int) {
    let rings = rings(entry);
    show(entry, Some((fd, rings)));
}

/// As `refresh`, after a receive that did not wait: the program is about to sleep until the
/// descriptor is ready, as far as the call can know. `missed`: the receive has found nothing.
pub(crate) fn refresh_for_sleep(entry: &Entry, fd: c_int, missed: bool) {
    let end = RingEnd::of(entry);
    let rings = end.fd().map(|fd| raw::polled(&entry.socket, Some(fd)));
    show_for_sleep(entry, fd, &end, rings, missed);
}

/// Shows the state of a socket whose program was announced to sleep at `end`. `rings`: the outcome of
/// that, if it was announced.
fn show_for_sleep(
    entry: &Entry,
    fd: c_int,
    end: &RingEnd,
    rings: Option<Option<u32>>,
    missed: bool,
) {
    show(entry, Some((fd, end.note(entry, rings))));
    if missed
        && let RingEnd::Descriptor(lent) = end
        && entry.face.can_ring()
        && entry.face.take_stray(fd)
    {
        // If the message came after this call had announced the sleep, there are data.
        let rings = end.note(entry, Some(raw::polled(&entry.socket, Some(lent.as_fd()))));
        show(entry, Some((fd, rings.saturating_sub(1))));
    }
}

/// Receives what has come, for a call that does not wait, without an operation. Returns the number of
/// bytes; 0: there are none. None: nothing was done, and the receive must be posted.
pub(crate) fn recv_at_once(entry: &Entry, buffer: &Buffer, fd: c_int) -> Option<u64> {
    Arrivals::prepare(entry);
    let end = RingEnd::of(entry);
    let asked = end.fd();
    let announced = |rings| asked.map(|_| rings);
    match raw::recv_at_once(&entry.socket, buffer, asked) {
        RecvAtOnce::WouldWait { rings } => {
            let known = Arrivals::is_looped(entry)
                && entry.face.is_clear()
                && !entry.arrivals.note.is_set();
            if !known {
                show_for_sleep(entry, fd, &end, announced(rings), true);
                found_nothing(entry);
            }
            Some(0)
        }
        RecvAtOnce::Took { bytes, rings, standing } => {
            let rings = end.note(entry, announced(rings));
            let nothing_to_show = !standing.readable && end_of(&standing) == End::None;
            if rings > 0 || !nothing_to_show || !entry.face.is_clear() {
                show(entry, Some((fd, rings)));
            } else {
                entry.arrivals.note.took_all(standing.arrived);
            }
            Some(bytes)
        }
        RecvAtOnce::Passed { bytes } => {
            took_what_came(entry, fd);
            Some(bytes)
        }
        RecvAtOnce::Unchanged => {
            if !entry.face.is_clear() {
                show_for_sleep(entry, fd, &end, None, true);
            }
            Some(0)
        }
        // It was declined.
        _ => None,
    }
}

/// A receive has taken a message that had just come. The descriptor shows what is true, unless it showed
/// data that an earlier receive has taken.
pub(crate) fn took_what_came(entry: &Entry, fd: c_int) {
    if !entry.face.is_clear() {
        show(entry, Some((fd, 0)));
    }
}

/// Returns the number of messages that the peer has left at the descriptor, for a call after which the
/// program does not sleep.
fn rings(entry: &Entry) -> u32 {
    if !entry.face.is_lent() {
        return 0;
    }
    raw::polled(&entry.socket, None).unwrap_or_else(|| {
        entry.face.note_unringable();
        0
    })
}

/// As `refresh`, after an event of a socket that is known by its number.
pub(crate) fn taken(fd: c_int) {
    if ASKED.get() > 0
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

/// Shows the state of a socket. Only a call that knows the descriptor can take back what is no
/// longer true. It brings the number of messages that the peer has left there.
fn show(entry: &Entry, visit: Option<(c_int, u32)>) {
    let mut shown = entry.face.shown();
    if entry.face.mode() == OFF {
        return;
    }
    if let Some((fd, rings)) = visit {
        shown.pair.note(fd);
        shown.pair.count_rings(rings);
    }
    let fd = visit.map(|(fd, _)| fd);
    let now = raw::standing(&entry.socket);
    let news = std::mem::replace(&mut shown.arrived, now.arrived) != now.arrived;
    let (end, pair) = (end_of(&now), &mut shown.pair);
    let bytes = usize::try_from(now.available).unwrap_or(usize::MAX).min(MOST_SHOWN);
    let (count, lying) = pair.lying();
    // At an end the descriptor is readable without a message.
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
        if pair.is_open() && (lying != bytes || count > MANY || pair.has_rings()) {
            pair.put(bytes);
            pair.take_back(fd, count);
        } else if lying > bytes {
            pair.shorten(fd, bytes);
        }
    }
    if end != End::None {
        Arrivals::end(entry);
    }
    pair.end(end);
    if now.readable && pair.is_open() && pair.lying().0 == 0 {
        pair.put(0);
    }
    entry.face.clear.store(pair.is_open() && pair.lying().0 == 0, Ordering::Release);
    entry.arrivals.note.clear();
}

/// Makes the descriptor not writable, until [`unplug`] has removed each reason.
pub(crate) fn plug(entry: &Entry, fd: c_int, why: Plug) {
    let mut shown = entry.face.shown();
    if entry.face.mode() != OFF {
        shown.plugs |= why as u8;
        shown.pair.plug(fd);
    }
}

/// Removes a reason.
pub(crate) fn unplug(entry: &Entry, why: Plug) {
    let mut shown = entry.face.shown();
    shown.plugs &= !(why as u8);
    if shown.plugs == 0 {
        shown.pair.unplug();
    }
}

/// Records that a call has reported the error that ended the connection: as with any socket,
/// poll(2) then shows POLLERR no longer.
pub(crate) fn forgive(entry: &Entry) {
    entry.face.shown().pair.forgive();
}
