//! A Replay as a test reads it: frame by frame, and checked on the way.

use counterfoil::proto::pb::{
    Cursor, Event, ReplayBatch, ReplayResponse, ReplayStarted, replay_response::Frame,
};
use tonic::{Status, Streaming};

use super::wait::within;

/// An open Replay after its first frame.
pub struct Frames {
    pub started: ReplayStarted,
    stream: Streaming<ReplayResponse>,
}

impl Frames {
    /// Reads the first frame, which has to be `started`.
    ///
    /// # Errors
    /// The stream's.
    pub async fn new(mut stream: Streaming<ReplayResponse>) -> Result<Self, Status> {
        match within("the first frame", stream.message()).await? {
            Some(ReplayResponse { frame: Some(Frame::Started(started)) }) => {
                Ok(Frames { started, stream })
            }
            other => panic!("the first frame is not `started`: {other:?}"),
        }
    }

    /// The next frame; nothing at the end.
    ///
    /// # Errors
    /// The stream's.
    pub async fn next(&mut self) -> Result<Option<Frame>, Status> {
        let frame = within("a frame of a Replay", self.stream.message()).await?;
        Ok(frame.map(|frame| frame.frame.expect("a frame says something")))
    }

    /// The next batch, heartbeats and `caught_up` left out.
    ///
    /// # Errors
    /// The stream's; also its end, as a status with code OK.
    pub async fn batch(&mut self) -> Result<ReplayBatch, Status> {
        loop {
            match self.next().await? {
                Some(Frame::Batch(batch)) => return Ok(batch),
                Some(Frame::Heartbeat(_) | Frame::CaughtUp(_) | Frame::Warning(_)) => {}
                Some(Frame::Started(_)) => panic!("`started` comes once"),
                None => return Err(Status::ok("the stream has ended")),
            }
        }
    }

    /// Reads at least so many events.
    ///
    /// # Errors
    /// The stream's.
    pub async fn events(&mut self, count: usize) -> Result<Vec<Event>, Status> {
        let mut events = Vec::new();
        while events.len() < count {
            events.extend(self.batch().await?.events);
        }
        Ok(events)
    }

    /// Reads up to the next `caught_up`.
    ///
    /// # Errors
    /// The stream's.
    pub async fn until_caught_up(&mut self) -> Result<(Vec<Event>, Cursor), Status> {
        let mut events = Vec::new();
        loop {
            match self.next().await? {
                Some(Frame::Batch(batch)) => events.extend(batch.events),
                Some(Frame::CaughtUp(caught_up)) => {
                    return Ok((events, caught_up.cursor.expect("a cursor at the head")));
                }
                Some(Frame::Heartbeat(_) | Frame::Warning(_)) => {}
                other => panic!("neither batch nor caught_up: {other:?}"),
            }
        }
    }

    /// Everything up to the end.
    ///
    /// # Errors
    /// The stream's.
    pub async fn rest(&mut self) -> Result<Vec<Event>, Status> {
        let mut events = Vec::new();
        while let Some(frame) = self.next().await? {
            if let Frame::Batch(batch) = frame {
                events.extend(batch.events);
            }
        }
        Ok(events)
    }

    /// Reads until the stream breaks, and gives the status it broke with.
    ///
    /// # Panics
    /// If it ends OK.
    pub async fn until_broken(&mut self) -> Status {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended OK, it should have broken"),
                Err(status) => return status,
            }
        }
    }
}
