//! What changes the whole database on the apply thread: a snapshot in the place of what it
//! holds, and the new `log_id` of a log that was forked. One attempt; whoever asks tries
//! again.

use super::{Apply, Failed, Install, STORE_FAILED, Stop, Trouble, store_changed, trouble};
use crate::{
    proto::chain::Cursor,
    receiver::choose::{Standing, standing},
};

impl Apply {
    /// Installs, or says why not. What is there already needs no installation.
    pub(super) fn install(&mut self, install: &Install) -> Result<(), String> {
        self.fit_for(install.ordered)?;
        let installed = self.try_install(install);
        if installed.is_err() {
            // The write-ahead log may have room to give back.
            self.idle = false;
            if self.may_go_on().is_ok() {
                let _ = self.writer.ready(); // what is in the way then has been said
            }
        }
        installed
    }

    fn try_install(&mut self, install: &Install) -> Result<(), String> {
        self.writer.ready().map_err(|failed| self.failed(failed))?;
        let ours = self.writer.committed();
        if let Some(staged) = &install.staged
            && !self.writer.is_of_ours(staged).map_err(|failed| self.failed(failed))?
        {
            return Err("a later version of the projection has taken over meanwhile".to_owned());
        }
        if !install.ordered {
            if ours != install.over {
                return Err("the database has gone on meanwhile".to_owned());
            }
            match standing(ours.as_ref(), install.brings.as_ref()) {
                Standing::Further => {}
                Standing::Same => {
                    self.board.note_installed(ours);
                    return Ok(());
                }
                Standing::Behind => {
                    let place =
                        |cursor: Option<Cursor>| cursor.map_or(-1, |cursor| cursor.sequence);
                    let (brings, ours) = (place(install.brings), place(ours));
                    return Err(format!(
                        "the snapshot at sequence {brings} is older than what is applied, {ours}"
                    ));
                }
            }
        }
        let ending = self.ending.clone();
        let go_on = move || !ending.is_cancelled();
        let done = self.writer.install(install.staged.as_deref(), install.brings, &go_on);
        if !done.map_err(|failed| self.failed(failed))? {
            return Err("the receiver is ending".to_owned());
        }
        (self.halted, self.refused, self.gaps, self.idle) = (false, None, 0, false);
        self.stuck = None;
        self.board.note_installed(install.brings);
        Ok(())
    }

    /// Takes over the new `log_id`, or says why not.
    pub(super) fn adopt(&mut self, to: Cursor) -> Result<(), String> {
        self.fit_for(false)?;
        let ours = self.writer.committed();
        if ours.map(|ours| (ours.sequence, ours.chain)) != Some((to.sequence, to.chain)) {
            return Err("what is applied is of another history, or at another place".to_owned());
        }
        self.writer.adopt(to).map_err(|failed| self.failed(failed))?;
        tracing::info!(log_id = %to.log_id, sequence = to.sequence, "the log has been forked; going on with it");
        self.board.note_adopted(to);
        Ok(())
    }

    /// Not after the disk has failed, not at the end, and after a halt only on order.
    pub(super) fn fit_for(&self, ordered: bool) -> Result<(), String> {
        match self.may_go_on() {
            Err(_) => Err("the receiver is ending, or its disk has failed".to_owned()),
            Ok(()) if self.halted && !ordered => Err("the receiver has halted".to_owned()),
            Ok(()) => Ok(()),
        }
    }

    /// What failed, in words; a failed disk ends all writing.
    pub(super) fn failed(&mut self, failed: Failed) -> String {
        let latch = match failed {
            Failed::Disk(error) => error.to_string(),
            Failed::Store(error) => match trouble::judge(&error) {
                Trouble::Broken => trouble::said(&error),
                Trouble::Full => return "the disk is full".to_owned(),
                Trouble::Busy | Trouble::Statement => {
                    return format!("the database is not free: {}", trouble::said(&error));
                }
            },
            Failed::Changed(why) => {
                self.stop(store_changed(&why));
                return format!("the database cannot be written to: {why}");
            }
            Failed::Event(faulty) => return faulty.why.said(),
        };
        self.stop(Stop::Latch(latch));
        format!("the disk has failed ({STORE_FAILED})")
    }
}
