//! Windows: how they open for a peer, and how they close.
//!
//! A device with type-2 memory windows binds one to the queue pair, with the bounds and rights asked
//! for. A device without them (siw, most iWARP) gets
//! - for a strict window (`bind_mw`) a registration of exactly these bytes: it is closed at once,
//!   but valid for every peer in the domain that knows the key;
//! - for a lent window (`lend_mw`) the key of a second registration of the whole MR for remote
//!   writes. It is made when first lent and lives as long as the MR, since to register for each
//!   transfer costs more than the transfer.
//!
//! The bind of a window waits in the send queue behind earlier WRs. A peer may hold them up for so
//! long that the budget for binds is used up (`send_budget`). Then a strict window is refused, and a
//! lent one becomes a registration of exactly these bytes.

use std::collections::HashMap;

use super::VerbsRnic;
use super::memory::{OpenWindow, WindowGrant};
use super::raw::{HwOp, Window};
use super::registrar::window_bits;
use crate::mem::{Access, Key};
use crate::rnic::{Mr, Qp, RnicError};

/// Closed windows that a queue pair keeps for later binds.
const MAX_SPARE_WINDOWS: usize = 64;

/// The windows of a queue pair. `W` is a window of the device.
pub(super) struct QpWindows<W = Window> {
    /// Keys of the open ones, and of registrations in their place.
    open: Vec<Key>,
    /// Windows that the peer has closed, for later binds.
    spare: Vec<W>,
    /// Lent keys of whole regions, and how many times each is lent.
    lent: HashMap<Key, usize>,
}

impl<W> Default for QpWindows<W> {
    fn default() -> QpWindows<W> {
        QpWindows { open: Vec::new(), spare: Vec::new(), lent: HashMap::new() }
    }
}

impl<W> QpWindows<W> {
    /// Takes everything out, as the device's queue pair ends. Returns the keys that were open.
    pub(super) fn clear(&mut self) -> Vec<Key> {
        self.spare.clear();
        self.lent.clear();
        std::mem::take(&mut self.open)
    }

    fn add(&mut self, key: Key) {
        self.open.push(key);
    }

    fn remove(&mut self, key: Key) {
        self.open.retain(|k| *k != key);
    }

    /// A window to bind.
    fn take_spare(&mut self) -> Option<W> {
        self.spare.pop()
    }

    /// Keeps a closed window, unless there are enough.
    fn keep(&mut self, window: W) {
        if self.spare.len() < MAX_SPARE_WINDOWS {
            self.spare.push(window);
        }
    }

    /// The key of a whole region was lent once more.
    fn lend(&mut self, key: Key) {
        *self.lent.entry(key).or_default() += 1;
    }

    /// A lent key is given back. False: it was not lent.
    fn give_back(&mut self, key: Key) -> bool {
        let Some(count) = self.lent.get_mut(&key) else { return false };
        *count -= 1;
        if *count == 0 {
            self.lent.remove(&key);
        }
        true
    }
}

impl VerbsRnic {
    /// Ends a region, and its windows with it.
    pub(super) fn dereg_mr(&mut self, mr: Mr) -> Result<(), RnicError> {
        for (key, window) in self.memory.take_windows_of(mr)? {
            let qp = window.qp;
            if let WindowGrant::Bound { bind, .. } = window.grant {
                self.wait_for_bind(qp, bind);
            }
            drop(window);
            self.forget_window(qp, key);
        }
        self.memory.dereg_mr(mr)?;
        // Receives that are not with the device yet must not get there any more.
        self.revoke_early_recvs(mr.key);
        Ok(())
    }

    /// Opens a window of exactly these bytes. It is open when this returns.
    pub(super) fn bind_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        (addr, len): (u64, u64),
        access: Access,
    ) -> Result<Key, RnicError> {
        let key = self.open_window(qp, mr, (addr, len), access, true)?;
        // The peer may get the key by another way than this queue pair, and rxe executes a bind late.
        // A peer that holds up our sends is not waited for.
        if let Some(&OpenWindow { grant: WindowGrant::Bound { bind, .. }, .. }) =
            self.memory.window(key)
        {
            self.bind_completes(qp.0, bind, 1000);
        }
        Ok(key)
    }

    /// Opens a window for a transfer. It opens with the next doorbell.
    pub(super) fn lend_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        (addr, len): (u64, u64),
        access: Access,
    ) -> Result<Key, RnicError> {
        let reads = access.remote_read || access.remote_atomic;
        if self.memory.lends_windows(mr)? || reads {
            return self.open_window(qp, mr, (addr, len), access, false);
        }
        let pd = self.live_qp(qp)?;
        self.memory.check_window(pd, mr, addr, len, access)?;
        let key = self.memory.lent_key(mr)?;
        self.qps.get_mut(qp.0)?.windows.lend(key);
        Ok(key)
    }

    fn open_window(
        &mut self,
        qp: Qp,
        mr: Mr,
        (addr, len): (u64, u64),
        access: Access,
        strict: bool,
    ) -> Result<Key, RnicError> {
        let pd = self.live_qp(qp)?;
        self.memory.check_window(pd, mr, addr, len, access)?;
        let binds = self.memory.is_bindable(mr, len)? && self.reserve_bind(qp.0, strict)?;
        let (key, grant) = if binds {
            let reg = self.memory.registration(mr)?;
            let window = match self.qps.get_mut(qp.0)?.windows.take_spare() {
                Some(spare) => Ok(spare),
                None => Window::new(self.memory.domain(pd)?),
            };
            let mut window = window.map_err(|e| RnicError::os("ibv_alloc_mw", &e))?;
            let op = HwOp::bind(&window, &reg, addr, len, window_bits(access));
            let bind = self.stage_bind(qp.0, op)?;
            window.bind_to(&reg);
            (window.key(), WindowGrant::Bound { window, bind })
        } else {
            self.memory.register_part(mr, (addr, len), access)?
        };
        self.memory.add_window(key, (qp.0, mr), grant)?;
        self.qps.get_mut(qp.0)?.windows.add(key);
        Ok(key)
    }

    pub(super) fn invalidate_mw(&mut self, qp: Qp, key: Key) -> Result<(), RnicError> {
        if self.qps.get_mut(qp.0)?.windows.give_back(key) {
            return Ok(());
        }
        let window = match self.memory.window(key) {
            Some(window) if window.qp == qp.0 => self.memory.take_window(key),
            _ => None,
        };
        let window = window.ok_or(RnicError::NoSuch { what: "memory window", id: key })?;
        self.forget_window(qp.0, key);
        if let WindowGrant::Bound { bind, .. } = window.grant {
            self.wait_for_bind(qp.0, bind);
        }
        // Freeing a window closes it before the call returns. A work request would close it at some
        // later time.
        drop(window);
        Ok(())
    }

    /// True if the key is that of a window. To close it takes one system call, to open another one.
    pub(super) fn invalidate_is_costly(&self, key: Key) -> bool {
        matches!(self.memory.window(key), Some(OpenWindow { grant: WindowGrant::Bound { .. }, .. }))
    }

    /// Records that the device has closed a window by itself (SEND with Invalidate). The window is kept
    /// for a later transfer: to bind it again takes no system call of its own.
    pub(super) fn closed_by_peer(&mut self, qp: u32, key: Key) {
        match self.memory.window(key) {
            Some(OpenWindow { qp: owner, grant: WindowGrant::Bound { .. }, .. })
                if *owner == qp => {}
            _ => return,
        }
        let taken = self.memory.take_window(key);
        let Some(OpenWindow { grant: WindowGrant::Bound { mut window, .. }, .. }) = taken else {
            return;
        };
        self.forget_window(qp, key);
        if let Ok(q) = self.qps.get_mut(qp) {
            window.was_closed();
            q.windows.keep(window);
        }
    }

    fn forget_window(&mut self, qp: u32, key: Key) {
        if let Ok(qp) = self.qps.get_mut(qp) {
            qp.windows.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lent_key_is_given_back_as_often_as_it_was_lent() {
        let mut windows = QpWindows::<()>::default();
        assert!(!windows.give_back(7));
        (0..2).for_each(|_| windows.lend(7));
        assert_eq!([(); 3].map(|()| windows.give_back(7)), [true, true, false]);
    }

    #[test]
    fn few_closed_windows_are_kept() {
        let mut windows = QpWindows::default();
        (0..=MAX_SPARE_WINDOWS).for_each(|n| windows.keep(n));
        assert_eq!(windows.take_spare(), Some(MAX_SPARE_WINDOWS - 1), "the last was one too many");
        assert_eq!(std::iter::from_fn(|| windows.take_spare()).count(), MAX_SPARE_WINDOWS - 1);
    }

    #[test]
    fn nothing_stays_open_after_the_queue_pair() {
        let mut windows = QpWindows::default();
        [7, 8, 9].into_iter().for_each(|key| windows.add(key));
        windows.remove(8);
        windows.keep(());
        windows.lend(10);
        assert_eq!(windows.clear(), [7, 9]);
        assert_eq!((windows.clear(), windows.take_spare()), (vec![], None));
        assert!(!windows.give_back(10));
    }
}
