//! Whether the other log still has what it has given receipts for. A publisher that was put
//! back to an older copy has lost its newest events and says nothing of it: but it does not
//! know the key of the last follow-up event that is noted here any more. Then all that it has
//! lost waits again, in its order; what it has all the same is a DUPLICATE.

use std::time::Duration;

use tokio::sync::oneshot;
use tonic::{Status, transport::Channel};

use super::{Forwarding, search::Search};
use crate::{
    client,
    proto::{
        pb::{GetReceiptRequest, ReceiptState},
        refusal::{Reason, reason_of},
        served::publisher_service_client::PublisherServiceClient,
        wire,
    },
    receiver::{
        apply::Work,
        replay::{self, within},
        source::DEADLINE,
        store::marks::{self, Mark, Place},
    },
};

/// How long nothing may follow until it is looked all the same.
pub const IDLE: Duration = Duration::from_secs(30);

/// A connection to ask after keys. Connects with the first call, and again.
#[derive(Debug, Clone)]
pub struct Receipts {
    client: PublisherServiceClient<Channel>,
    log: String,
}

impl Receipts {
    /// Of the publisher and the log that are published to.
    ///
    /// # Errors
    /// [`client::ConnectError`].
    pub fn of(settings: &client::Settings) -> Result<Self, client::ConnectError> {
        let client = replay::client(client::channel(&settings.url)?);
        Ok(Receipts { client, log: settings.log.clone() })
    }

    /// Whether a follow-up event stands where it is noted. What cannot be told counts as
    /// true: a receipt that has expired, or is damaged over there.
    async fn has(&self, mark: &Mark) -> Result<bool, Status> {
        let request = GetReceiptRequest {
            log: self.log.clone(),
            key: mark.key.clone(),
            first_attempt_time: mark.first_attempt_time.map(wire::timestamp),
        };
        let answer = match within(DEADLINE, self.client.clone().get_receipt(request)).await {
            Ok(answer) => answer.into_inner(),
            Err(status) if reason_of(&status) == Some(Reason::Corrupt) => return Ok(true),
            Err(status) => return Err(status),
        };
        let at = answer.receipt.as_ref().and_then(|receipt| receipt.sequence);
        match answer.state() {
            ReceiptState::Accepted => Ok(at == Some(mark.place.at)),
            ReceiptState::NeverAccepted => Ok(false),
            ReceiptState::Expired => Ok(true),
            ReceiptState::Unspecified => {
                Err(Status::unknown("the publisher does not say what became of a key"))
            }
        }
    }
}

/// What is known of the other log from one look to the next.
#[derive(Debug, Default)]
pub struct Seen {
    /// The incarnation that the last receipts were of.
    log_id: Option<String>,
    /// Whether the earlier ones have been looked at since.
    earlier: bool,
    /// A place at which something else stands now than is noted.
    taken: Option<Place>,
    /// All was there a moment ago, and nothing has come in between.
    fresh: bool,
}

impl Seen {
    /// Receipts have come, of this incarnation of the log.
    pub fn receipts(&mut self, log_id: String) {
        if self.log_id.as_ref() != Some(&log_id) {
            (self.log_id, self.earlier) = (Some(log_id), false);
        }
    }

    /// Receipts are noted, and all before them was there when they came.
    pub fn made_sure(&mut self) {
        self.fresh = true;
    }

    /// Whether more may be sent with no look before it, only with the one after it. Once.
    pub fn is_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    /// Another follow-up event than the noted one has this place.
    pub fn taken(&mut self, place: Place) {
        self.taken = Some(place);
    }

    /// Those to be looked at, of the last ones of each incarnation. An earlier one gets no
    /// more, and what it has stays as long as what came after it: once is enough.
    fn due<'m>(&self, last: &'m [Mark]) -> Vec<&'m Mark> {
        let newest = |mark: &&Mark| Some(&mark.place.log_id) == self.log_id.as_ref();
        let only = self.earlier && last.iter().any(|mark| newest(&mark));
        last.iter().filter(|mark| !only || newest(mark)).collect()
    }
}

/// Why it is not known whether something is lost.
pub enum Unseen {
    /// The other publisher does not say.
    Away(Status),
    /// The database cannot be read or written now.
    Store(String),
    /// The receiver ends.
    Over,
}

impl From<Status> for Unseen {
    fn from(status: Status) -> Self {
        Unseen::Away(status)
    }
}

impl Forwarding {
    /// Looks at the last marks, and lets wait again what the other log has lost. `false`: it
    /// has lost nothing.
    pub(super) async fn look(&self, seen: &mut Seen, last: &[Mark]) -> Result<bool, Unseen> {
        let mut lost = seen.taken.clone();
        for mark in seen.due(last) {
            if lost.is_none() && !self.receipts.has(mark).await? {
                lost = Some(mark.place.clone());
            }
        }
        let Some(lost) = lost else {
            seen.earlier = true;
            return Ok(false);
        };
        self.set_back(lost).await?;
        // Other incarnations may be in it, too.
        (seen.taken, seen.earlier) = (None, false);
        Ok(true)
    }

    /// What is noted at a place is lost: finds from where on, and lets that wait again.
    async fn set_back(&self, lost: Place) -> Result<(), Unseen> {
        let Place { log_id, at } = lost;
        let (mut search, mut has_some) = (Search::below(at), false);
        while let Some(asked) = search.next() {
            let place = Place { log_id: log_id.clone(), at: asked };
            let mark = self.readers.read(move |tables| marks::last_up_to(tables, &place)).await;
            let mark = mark.map_err(|status| Unseen::Store(status.message().to_owned()))?;
            match mark {
                Some(mark) if !search.knows(mark.place.at) => {
                    if self.receipts.has(&mark).await? {
                        has_some = true;
                        search.keeps(asked);
                    } else {
                        search.loses(mark.place.at);
                    }
                }
                _ => search.keeps(asked),
            }
        }
        let from = search.lost();
        let (set_back, answer) = oneshot::channel();
        let work = Work::Lost(Place { log_id: log_id.clone(), at: from }, set_back);
        self.work.send(work).await.map_err(|_| Unseen::Over)?;
        let again = answer.await.map_err(|_| Unseen::Over)?.map_err(Unseen::Store)?;
        let rest = match has_some {
            true => "",
            false => {
                " It has none of those that are still noted here: what was pruned here may \
                      be lost there, too."
            }
        };
        let message = format!(
            "The publisher that follow-up events go to has lost those that it had from sequence \
             {from} of {log_id} on (it was put back to an older copy, or is another one): \
             {again} are sent again.{rest}"
        );
        tracing::error!(log_id, from, again, "{message}");
        self.board.note(|status| status.forward_lost = Some(message));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(log_ids: &[&str]) -> Vec<Mark> {
        let mark = |log_id: &&str| Mark {
            place: Place { log_id: (*log_id).to_owned(), at: 7 },
            key: format!("of {log_id}"),
            first_attempt_time: None,
        };
        log_ids.iter().map(mark).collect()
    }

    #[test]
    fn an_earlier_incarnation_is_looked_at_once() {
        let (both, a, b) = (&last(&["a", "b"]), &last(&["a"]), &last(&["b"]));
        let mut seen = Seen::default();
        let due = |seen: &Seen, marks| seen.due(marks).into_iter().cloned().collect::<Vec<_>>();
        assert_eq!(due(&seen, both), *both, "at the start");
        seen.earlier = true;
        assert_eq!(due(&seen, both), *both, "nobody has said which one it is now");
        seen.receipts("b".to_owned());
        assert_eq!(due(&seen, both), *both, "it is another one than was known");
        seen.earlier = true;
        seen.receipts("b".to_owned());
        assert_eq!(due(&seen, both), *b);
        assert_eq!(due(&seen, a), *a, "another database has come");
        seen.receipts("c".to_owned());
        assert_eq!(due(&seen, both), *both, "a fork");
    }
}
