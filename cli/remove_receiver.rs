//! `counterfoil remove-receiver`: lets a publisher forget a receiver that is gone for good.

use std::process::ExitCode;

use counterfoil::proto::pb::RemoveReceiverRequest;

use crate::{arguments, failure::Failure, link, output::say};

/// Asks for it, and says that it is done.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL; [`Failure::Runtime`] where it is refused.
pub async fn run(arguments: arguments::RemoveReceiver) -> Result<ExitCode, Failure> {
    let arguments::RemoveReceiver { source, name, confirm } = arguments;
    let mut publisher = link::publisher_admin(&source.publisher)?;
    let request = RemoveReceiverRequest { log: source.log, receiver: name.clone(), confirm };
    match publisher.remove_receiver(link::call(request)).await {
        Ok(_) => {
            say(format!("receiver {name} is forgotten"));
            Ok(ExitCode::SUCCESS)
        }
        Err(status) => Err(Failure::call(&source.publisher, &status)),
    }
}
