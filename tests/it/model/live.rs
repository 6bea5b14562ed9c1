//! One history on a real publisher. What a death leaves open is settled by the log's
//! head: the requests of a history go in one after the other, so the head tells how many
//! of them did.

use counterfoil::proto::{
    crash,
    event::Time,
    pb::{GetReceiptRequest, ReplayRequest, StartAt, replay_request::Start},
    refusal::{Reason, reason_of},
};
use tempfile::TempDir;
use tonic::Status;

use super::{
    Answer, Bounds, Hour, Intent, Key, Model,
    check::Witness,
    operations::{History, Operation, Request},
    run::Tally,
};
use crate::harness::{
    clock::{HOUR_MS, SteppedClock},
    events::{adjusted, at_version},
    pair::directory,
    process::Ended,
    publish_stream::{self, PublishStream},
    publisher::{Publisher, Setup, publish},
    refusal::refused,
    wait::{wait_until, within},
};

/// A history while it is lived.
pub struct Life<'a> {
    tally: &'a Tally,
    model: Model,
    /// Every request so far.
    made: Vec<Vec<Intent>>,
    witness: Witness,
    clock: SteppedClock,
    /// What the system's clock shows.
    clock_shows: Hour,
    /// Whether the publisher may be found dead.
    may_die: bool,
    /// A stream that stays open from one operation to the next.
    stream: Option<PublishStream>,
    publisher: Publisher,
    setup: Setup,
    _dir: TempDir,
}

/// Requests of one producer, what they have to be answered, and what is the case
/// after so many of them.
struct Expected {
    requests: Vec<Vec<Intent>>,
    answers: Vec<Answer>,
    states: Vec<Model>,
}

impl Expected {
    fn from(model: Model) -> Self {
        Expected { requests: Vec::new(), answers: Vec::new(), states: vec![model] }
    }

    fn then(&mut self, intents: Vec<Intent>) {
        let mut state = self.last().clone();
        self.answers.push(state.publish(&intents));
        self.requests.push(intents);
        self.states.push(state);
    }

    fn last(&self) -> &Model {
        self.states.last().expect("there is the state before all requests")
    }
}

fn config(bounds: &Bounds) -> String {
    let Bounds { key_window, max_untimed_keys, max_events, max_age, reject } = bounds;
    let when_full = if *reject { "reject" } else { "drop_oldest" };
    // Files of a few events each, so that they come and go.
    format!(
        "[logs.main]\nkey_window = \"{key_window}h\"\nmax_untimed_keys = {max_untimed_keys}\n\
         max_events = {max_events}\nmax_age = \"{max_age}h 30m\"\nwhen_full = \"{when_full}\"\n\
         segment_bytes = 2048\n"
    )
}

impl<'a> Life<'a> {
    /// Lives a history from an empty directory on.
    ///
    /// # Panics
    /// If anything is not as the model has it.
    pub async fn live(history: &History, tally: &'a Tally) {
        let dir = directory();
        let clock = SteppedClock::new(dir.path());
        let setup = Publisher::at(dir.path()).clock(&clock).config(&config(&history.bounds));
        let began_ms = Time::from_system(std::time::SystemTime::now()).unix_millis();
        let publisher = setup.clone().start();
        let log_id = publisher.log().await.log_id;
        let mut life = Life {
            tally,
            model: Model::new(history.bounds),
            made: Vec::new(),
            witness: Witness::new(began_ms, log_id),
            clock,
            clock_shows: 0,
            may_die: false,
            stream: None,
            setup: setup.listen(publisher.address),
            publisher,
            _dir: dir,
        };
        // Something that can be repeated.
        let key = Key::Text(0);
        let first = Intent { key, stated: None, subject: 0, expected_version: None, delta: 1 };
        life.made.push(vec![first]);
        life.repeat(&[first]).await;
        for operation in &history.operations {
            life.operate(operation).await;
        }
        life.look().await;
        life.publisher.process.kill();
        life.start(None).await;
        // Whatever was asked for, from the first request on.
        for intents in std::mem::take(&mut life.made) {
            life.repeat(&intents).await;
        }
        life.look().await;
    }

    async fn operate(&mut self, operation: &Operation) {
        match operation {
            Operation::Publish(request) => {
                let expected = self.expect(std::slice::from_ref(request));
                let events = self.witness.messages(&expected.requests[0]);
                let answer = publish(&self.publisher.client, "", events).await;
                self.settle(expected, if is_broken(&answer) { vec![] } else { vec![answer] }).await;
            }
            Operation::Stream(requests) => self.stream(requests, None).await,
            Operation::KilledStream(requests, read) => self.stream(requests, Some(*read)).await,
            Operation::GetReceipt { which, stating } => {
                let intent = which.get(which.get::<Vec<_>>(&self.made).as_slice());
                let (key, stated) = (intent.key, intent.stated.filter(|_| *stating));
                self.get_receipt(key, stated).await;
            }
            Operation::GetNothing(key) => {
                self.get_receipt(key.settle(self.model.clock), None).await;
            }
            Operation::Look => self.look().await,
            Operation::SetClock(by) => {
                self.clock_shows = self.model.clock + by;
                self.clock.stands_ahead(self.clock_shows * HOUR_MS);
                if self.wake().await.is_err() {
                    self.revive().await;
                }
                self.tally.count("operations");
            }
            Operation::Restart { kill, key_window, max_untimed_keys } => {
                let bounds = &mut self.model.bounds;
                bounds.key_window = key_window.unwrap_or(bounds.key_window);
                bounds.max_untimed_keys = max_untimed_keys.unwrap_or(bounds.max_untimed_keys);
                if *kill {
                    self.publisher.process.kill();
                } else {
                    self.publisher.process.tell_to_end();
                    let ended = self.publisher.process.ended();
                    assert!(self.may_die || ended.code() == Some(0), "{ended:?}");
                }
                self.start(None).await;
                self.tally.count("operations");
            }
            Operation::Arm { point, after } => {
                self.publisher.process.kill();
                self.start(Some((*point, *after))).await;
                self.tally.count("operations");
            }
        }
    }

    /// Settles what requests come to, and what they have to be answered.
    fn expect(&mut self, requests: &[Request]) -> Expected {
        let mut expected = Expected::from(self.model.clone());
        for request in requests {
            let intents = request.settle(expected.last(), &self.made);
            self.made.push(intents.clone());
            expected.then(intents);
        }
        expected
    }

    /// Requests on the stream; `kill -9` once so many answers have been read.
    async fn stream(&mut self, requests: &[Request], killed_after: Option<usize>) {
        let expected = self.expect(requests);
        let read = killed_after.unwrap_or(usize::MAX).min(requests.len());
        let answers = self.stream_answers(&expected.requests, read).await;
        if killed_after.is_some() {
            self.publisher.process.kill();
            self.may_die = true;
        }
        self.settle(expected, answers).await;
    }

    /// Sends requests and reads so many answers, or fewer where the stream breaks.
    async fn stream_answers(
        &mut self,
        requests: &[Vec<Intent>],
        read: usize,
    ) -> Vec<publish_stream::Answer> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => match PublishStream::open(&self.publisher.client).await {
                Ok(stream) => stream,
                Err(_) => return Vec::new(),
            },
        };
        for intents in requests {
            stream.send(self.witness.messages(intents));
        }
        let mut answers = Vec::new();
        while answers.len() < read {
            let Ok(Some(answer)) = stream.next().await else { return answers };
            answers.push(answer);
        }
        self.stream = Some(stream);
        answers
    }

    /// Compares the answers. Where some are missing the publisher has died: its head
    /// tells what of the unanswered requests it took in, and they are made once more.
    async fn settle(&mut self, expected: Expected, answers: Vec<publish_stream::Answer>) {
        let Expected { requests, answers: predicted, mut states } = expected;
        let answered = answers.len();
        for (n, answer) in answers.into_iter().enumerate() {
            self.compare(&states[n + 1], &predicted[n], answer);
        }
        if answered == requests.len() {
            self.model = states.pop().expect("one state more than requests");
            return;
        }
        self.revive().await;
        let next = self.publisher.log().await.next_sequence.expect("always set") as usize;
        let possible = &states[answered..];
        let state = possible.iter().rfind(|state| state.log.len() == next);
        let lengths: Vec<_> = possible.iter().map(|state| state.log.len()).collect();
        let state = state.unwrap_or_else(|| panic!("the head is {next}, none of {lengths:?}"));
        if next > lengths[0] {
            self.tally.count("unanswered, accepted");
        }
        if next < *lengths.last().expect("one at least") {
            self.tally.count("unanswered, without a trace");
        }
        self.model = state.clone();
        self.model.restarts();
        self.model.clock_shows(self.clock_shows);
        for intents in &requests[answered..] {
            self.repeat(intents).await;
        }
    }

    /// A request to a publisher that has no reason to die, by a call of its own.
    async fn repeat(&mut self, intents: &[Intent]) {
        let predicted = self.model.publish(intents);
        let events = self.witness.messages(intents);
        let answer = publish(&self.publisher.client, "", events).await;
        let state = self.model.clone();
        self.compare(&state, &predicted, answer);
    }

    fn compare(&mut self, state: &Model, predicted: &Answer, answer: publish_stream::Answer) {
        self.tally.count("operations");
        self.tally.count(match predicted {
            Answer::Appended(_) => "appended".to_owned(),
            Answer::Duplicate(_) => "duplicate".to_owned(),
            Answer::Refused(reason, _) => format!("{reason:?}"),
        });
        self.witness.answer(state, predicted, answer);
    }

    async fn get_receipt(&mut self, key: Key, stated: Option<Hour>) {
        let request = GetReceiptRequest {
            key: self.witness.key(key),
            first_attempt_time: stated.map(|hour| self.witness.time(hour)),
            ..Default::default()
        };
        let answer = self
            .ask(async |publisher| {
                let mut client = publisher.client.clone();
                within("GetReceipt", client.get_receipt(request.clone())).await
            })
            .await;
        let expected = self.model.receipt(key, stated);
        self.tally.count("operations");
        self.tally.count(format!("receipt {:?}", answer.get_ref().state()));
        self.witness.known(&self.model, expected, answer.get_ref());
    }

    /// What the log holds, once age has been looked at.
    async fn look(&mut self) {
        self.model.floor = self.model.floor_by_age();
        wait_until("what is too old has been dropped", async || {
            let log = self.ask(Publisher::try_log).await;
            self.witness.log(&self.model, &log);
            let floor = log.floor_sequence.expect("always set") as usize;
            assert!(floor <= self.model.floor, "dropped too early: {log:?}");
            (floor == self.model.floor).then_some(())
        })
        .await;
        let events = self
            .ask(async |publisher| {
                let start = Some(Start::StartAt(StartAt::Oldest.into()));
                let look = ReplayRequest { start, ..Default::default() };
                publisher.replay(look).await?.rest().await
            })
            .await;
        self.witness.events(&self.model, &events);
        self.tally.count("operations");
    }

    /// Asks, and once more where the publisher was to die and has.
    async fn ask<T>(&mut self, question: impl AsyncFn(&Publisher) -> Result<T, Status>) -> T {
        let answer = question(&self.publisher).await;
        if !is_broken(&answer) {
            return answer.expect("a question is answered");
        }
        self.revive().await;
        question(&self.publisher).await.expect("a question is answered")
    }

    /// After a death that was to be expected.
    async fn revive(&mut self) {
        assert!(self.may_die, "the publisher is gone: {}", self.publisher.process.said());
        let ended = self.publisher.process.ended();
        self.has_died(&ended);
        self.start(None).await;
    }

    fn has_died(&self, ended: &Ended) {
        assert!(ended.by_signal(), "{ended:?}");
        let point = crash::PUBLISHER.iter().find(|point| ended.stderr.contains(*point));
        self.tally.count(format!("death: {}", point.unwrap_or(&"kill -9")));
    }

    /// Starts the successor of a dead publisher. One that dies on its way is followed
    /// by a sound one.
    async fn start(&mut self, dies_at: Option<(&'static str, u32)>) {
        self.stream = None;
        self.model.restarts();
        self.setup = self.setup.clone().config(&config(&self.model.bounds));
        if let Some((point, after)) = dies_at {
            self.may_die = true;
            let ended = match self.setup.clone().dies_at(point, after).try_start() {
                Ok(publisher) => {
                    self.publisher = publisher;
                    if self.wake().await.is_ok() {
                        return;
                    }
                    self.publisher.process.ended()
                }
                Err(ended) => ended,
            };
            self.has_died(&ended);
            self.model.restarts();
        }
        self.publisher = self.setup.clone().start();
        self.may_die = false;
        self.wake().await.expect("a sound publisher answers");
    }

    /// Has the publisher look at its clock, as with every request: by one that leaves
    /// nothing.
    async fn wake(&mut self) -> Result<(), Status> {
        self.model.clock_shows(self.clock_shows);
        let stale = at_version(adjusted("nobody's", "item-0", 1), 1_000_000);
        let answer = publish(&self.publisher.client, "", vec![stale]).await;
        if is_broken(&answer) {
            return answer.map(drop);
        }
        refused(answer, Reason::StaleVersion);
        Ok(())
    }
}

/// Whether nobody has answered.
fn is_broken<T>(answer: &Result<T, Status>) -> bool {
    answer.as_ref().is_err_and(|status| reason_of(status).is_none())
}
