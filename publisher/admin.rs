//! The RPC edge of what a person changes at a publisher: decode, call, encode.

use tonic::{Request, Response, Status};

use super::{hub::Hub, intake};
use crate::proto::{
    pb::{self, publisher_admin_service_server::PublisherAdminService},
    refusal::Refusal,
    wire,
};

/// `counterfoil.v1.PublisherAdminService` over the logs of this process.
#[derive(Clone)]
pub struct Admin {
    hub: Hub,
}

impl Admin {
    /// Serves these logs.
    pub fn new(hub: Hub) -> Self {
        Admin { hub }
    }
}

#[tonic::async_trait]
impl PublisherAdminService for Admin {
    async fn remove_receiver(
        &self,
        request: Request<pb::RemoveReceiverRequest>,
    ) -> Result<Response<pb::RemoveReceiverResponse>, Status> {
        let pb::RemoveReceiverRequest { log, receiver, confirm } = request.into_inner();
        wire::name(&receiver, "receiver")?;
        let log = intake::log(&self.hub, &log)?;
        if confirm != receiver {
            let wrong = format!("is {confirm:?}; it has to be {receiver:?}, the receiver's name");
            return Err(Refusal::field("confirm", wrong).into());
        }
        log.receivers.remove(&receiver).await?;
        Ok(Response::new(pb::RemoveReceiverResponse {}))
    }
}
