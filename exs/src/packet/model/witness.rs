//! What must hold, whatever the order of events.

use super::*;

impl World {
    pub(super) fn copy(
        &mut self,
        script: &Script,
        op: OpId,
        src: OpId,
        len: u32,
        all: u32,
    ) -> Result<(), String> {
        let buffer = &mut self.buffers[index(op)];
        check!(buffer.content.is_none(), "{op} is filled twice");
        check!(buffer.window.is_none(), "{op} is filled while it is open");
        let fits = u64::from(all).min(script.recvs[index(op)].len);
        check!(u64::from(len) == fits, "{len} bytes of {src} to {op}");
        buffer.content = Some((src, u64::from(len)));
        Ok(())
    }

    pub(super) fn end(&mut self, op: OpId) -> Result<(), String> {
        check!(!self.ended.contains(&op), "{op} ends twice");
        self.ended.push(op);
        // A set: the order of ends at different sides is no difference.
        self.ended.sort_unstable();
        Ok(())
    }

    /// Does the receive have what it must have?
    pub(super) fn check_received(
        &mut self,
        script: &Script,
        op: OpId,
        (bytes, total): (u64, u64),
        eof: bool,
        outcome: Outcome,
    ) -> Result<(), String> {
        let Buffer { window, content } = self.buffers[index(op)];
        check!(window.is_none(), "{op} ended while it is open");
        let recv = script.recvs[index(op)];
        if eof || outcome == Outcome::Cancelled {
            check!(content.is_none() && (bytes, total) == (0, 0), "{op} ended with a message");
            if eof {
                check!(self.received == self.started.len(), "{op}: the end came too early");
            }
            return Ok(());
        }
        if recv.peek && content.is_none() {
            check!(bytes == 0, "{op}: peeked {bytes} bytes of nothing");
            return Ok(());
        }
        let expected = *self.started.get(self.received).ok_or("received before sent")?;
        check!(content == Some((expected, bytes)), "{op}: {content:?} instead of {expected}");
        check!(total == script.send_len(expected), "{op}: length {total} of {expected}");
        check!(bytes == total.min(recv.len), "{op}: only {bytes} bytes of {expected}");
        if !recv.peek {
            self.received += 1;
        }
        Ok(())
    }

    /// If the connection were cut now: is every operation handed back once, and
    /// every window closed?
    pub(super) fn check_abort(&self) -> Result<(), String> {
        let (mut tx, mut rx) = (self.tx.clone(), self.rx.clone());
        let mut back = tx.abort();
        back.extend(rx.abort());
        check!(back.iter().copied().eq(self.pending()), "abort gave {back:?}");
        let mut open: Vec<OpId> = Vec::new();
        for (i, buffer) in self.buffers.iter().enumerate() {
            if buffer.window.is_some() {
                open.push(RECV + i as OpId);
            }
        }
        while let Some(action) = rx.poll() {
            let PacketRxAction::Retract { op } = action else {
                return Err(format!("{action:?} after abort"));
            };
            open.retain(|o| *o != op);
        }
        check!(open.is_empty(), "abort left {open:?} open");
        check!(tx.poll(true).is_none() && tx.is_idle() && rx.is_idle(), "work after abort");
        Ok(())
    }
}
