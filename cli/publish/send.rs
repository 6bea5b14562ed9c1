//! Sends events one after the other, with so many unanswered at a time, and
//! notes what came of each, in order.

use std::{collections::VecDeque, future::poll_fn, pin::Pin, task::Poll};

use counterfoil::client::{Publisher, Submitted};

use super::{input::Line, line::KeyFrom, summary::Summary};

/// Sends to one log.
pub struct Sender {
    publisher: Publisher,
    /// Most events that may be unanswered.
    in_flight: usize,
    /// Line numbers and what will be answered, in the order of the input.
    waiting: VecDeque<(u64, Submitted)>,
    /// What has come of the events sent so far.
    pub summary: Summary,
}

impl Sender {
    /// Sends through `publisher`, with at most `in_flight` events unanswered.
    pub fn new(publisher: Publisher, in_flight: usize) -> Self {
        Sender { publisher, in_flight, waiting: VecDeque::new(), summary: Summary::default() }
    }

    /// Sends one more event, unless going on has turned out to be pointless.
    pub async fn send(&mut self, line: Line) {
        while self.waiting.len() >= self.in_flight && !self.is_stopped() {
            self.next_answer().await;
        }
        if self.is_stopped() {
            return;
        }
        self.summary.made_keys += u64::from(line.key_from == KeyFrom::Made);
        match self.publisher.submit(vec![line.event]).await {
            Ok(submitted) => self.waiting.push_back((line.number, submitted)),
            Err(error) => {
                self.all_answers().await;
                self.summary.note(line.number, Err(error));
            }
        }
    }

    /// Notes the answer to the oldest event that has none; never returns when
    /// there is no such event. Nothing is lost by not waiting to the end.
    pub async fn next_answer(&mut self) {
        let (line, answer) = poll_fn(|cx| {
            let Some((line, submitted)) = self.waiting.front_mut() else { return Poll::Pending };
            Pin::new(submitted).poll(cx).map(|answer| (*line, answer))
        })
        .await;
        self.waiting.pop_front();
        self.summary.note(line, answer);
    }

    /// Notes the answers to all events that were sent.
    pub async fn all_answers(&mut self) {
        while !self.waiting.is_empty() {
            self.next_answer().await;
        }
        self.summary.repeated = self.publisher.repeated();
    }

    /// Whether sending more has turned out to be pointless.
    pub fn is_stopped(&self) -> bool {
        self.summary.stop.is_some()
    }
}
