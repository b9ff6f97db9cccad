//! Read delegations of files, with NFSv4 (RFC 8881 section 10.4).

use std::sync::Arc;

use millrace_oncrpc::CallClass;
use millrace_runtime::Uncancelled;

use super::Client;
use crate::{
    Delegation, Error, Recalled,
    credential::CallCredential,
    ops::{Attributes, FileHandle},
    v4::{
        Session,
        compounds::{Delegate, Delegates},
        spec,
    },
};

/// Maximum size of the reply in bytes: the attributes have names of owners of up to 1 KiB each.
const REPLY: usize = 4096;

/// A file that is delegated to the client.
#[derive(Debug)]
pub struct Delegated {
    /// The delegation.
    pub delegation: Delegation,
    /// Completes when the delegation has ended, and is to be dropped.
    pub recalled: Recalled,
    /// The attributes of the file when it was delegated. Only the requests of this client have changed them while the
    /// delegation is valid.
    pub attributes: Attributes,
}

impl Client {
    /// Requests a read delegation of a file. While it is [valid](Delegation::is_valid), the caller may use attributes and
    /// data of the file, requested after this call or with it, without asking the server.
    ///
    /// Returns `None` with NFSv3, if the server grants none, or while the client has one of the file, which need not be
    /// valid. After a server has refused one for a reason other than the use of the file by others, the client does not
    /// ask for a minute. It has at most 4,096 delegations; a further one ends that which was not used for the longest
    /// time. Dropping the future returns what the server grants.
    ///
    /// # Errors
    /// The errors of a call.
    pub async fn delegate(&self, file: FileHandle) -> Result<Option<Delegated>, Error> {
        let Some(session) = self.session() else { return Ok(None) };
        let rt = &self.shared.pool.rt;
        if !session.delegations.ask(file.as_bytes(), rt.now()) {
            return Ok(None);
        }
        let request = request(Arc::clone(session), Arc::clone(self.credential()), file);
        Uncancelled::new(rt, "request delegation", request).await
    }
}

/// Makes the request, which the caller has recorded in the table of delegations.
async fn request(
    session: Arc<Session>,
    credential: Arc<CallCredential>,
    file: FileHandle,
) -> Result<Option<Delegated>, Error> {
    let asked = async {
        session.bind_back_channel().await?;
        let spec = spec("OPEN", REPLY, CallClass::Other);
        Ok::<_, Error>(
            session.call(&credential, spec, true, &mut Delegate(file.as_bytes()), None).await?.result,
        )
    };
    let delegates = match asked.await {
        Ok(Ok(delegates)) => delegates,
        Ok(Err(_)) => Delegates::Contended,
        Err(e) => {
            session.delegations.refused(file.as_bytes());
            return Err(e);
        }
    };
    match delegates {
        Delegates::Granted { stateid, attributes } => {
            let (delegation, recalled) = session.hold(&credential, file.as_bytes(), stateid);
            Ok(attributes.map(|attributes| Delegated { delegation, recalled, attributes }))
        }
        Delegates::Contended => {
            session.delegations.refused(file.as_bytes());
            Ok(None)
        }
        Delegates::Refused => {
            session.delegations.refused(file.as_bytes());
            session.delegations.pause(session.pool.rt.now());
            Ok(None)
        }
    }
}
