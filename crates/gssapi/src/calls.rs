//! Safe forms of the library's functions: what it returns is released when it is dropped.

#![allow(unsafe_code)] // Foreign functions.

use std::{
    ffi::{CStr, c_void},
    fmt, ptr, slice,
    time::Duration,
};

use millrace_krb5::{Context, Enctype, Parameters, Role};

#[cfg(test)]
use crate::ffi::PerMessage;
use crate::{
    error::{Error, Status},
    ffi::{Gssapi, gssapi, types::*},
};

/// Calls a function of the library whose first argument is the status of the mechanism, and returns both statuses.
macro_rules! call {
    ($library:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let mut minor = 0;
        let major = ($library.$function)(&mut minor, $($argument),*);
        (major, minor)
    }};
}

/// Memory that the library has allocated for its result.
struct Output {
    library: &'static Gssapi,
    buffer: gss_buffer_desc,
}

impl Output {
    fn new(library: &'static Gssapi) -> Self {
        Self { library, buffer: gss_buffer_desc::EMPTY }
    }

    fn bytes(&self) -> &[u8] {
        match self.buffer.value.is_null() {
            true => &[],
            // SAFETY: the library has initialized the memory, which remains until the buffer is released.
            false => unsafe { slice::from_raw_parts(self.buffer.value.cast(), self.buffer.length) },
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // SAFETY: the buffer is empty, or the library has filled it.
        unsafe { call!(self.library, gss_release_buffer(&mut self.buffer)) };
    }
}

/// Declares an owned pointer to a structure of the library, and the function that releases it.
macro_rules! handle {
    ($(#[$doc:meta])* $name:ident { $pointer:ident }, $release:ident($($more:expr)?)) => {
        $(#[$doc])*
        pub(crate) struct $name {
            library: &'static Gssapi,
            $pointer: Handle,
        }

        impl Drop for $name {
            fn drop(&mut self) {
                if !self.$pointer.is_null() {
                    // SAFETY: the library has created the structure, and there is no other pointer to it.
                    unsafe { call!(self.library, $release(&mut self.$pointer $(, $more)?)) };
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }

        // SAFETY: any thread may use the library, and its structures belong to none.
        unsafe impl Send for $name {}
    };
}

handle!(
    /// A name.
    Name { name }, gss_release_name()
);

handle!(
    /// Credentials.
    Cred { cred }, gss_release_cred()
);

handle!(
    /// A security context; null before the first token.
    SecurityContext { context }, gss_delete_sec_context(ptr::null_mut())
);

// SAFETY: the library locks credentials where it changes them.
unsafe impl Sync for Cred {}

/// How credentials are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Usage {
    Initiate,
    Accept,
}

/// The statuses of a call that failed, with the library's text. It must follow the call in the same thread, because
/// the library keeps the texts for each thread.
fn status(library: &'static Gssapi, action: &str, (major, minor): (u32, u32)) -> Error {
    let text =
        [(major, GSS_C_GSS_CODE), (minor, GSS_C_MECH_CODE)].map(|(code, kind)| text(library, code, kind));
    let text = match text {
        [major, minor] if ["", "Success"].contains(&&*minor) => major,
        [_, minor] => minor,
    };
    Status { action: action.to_owned(), major, minor, text }.into()
}

/// The text of a status, empty if there is none.
fn text(library: &'static Gssapi, code: u32, kind: i32) -> String {
    let mut lines = Vec::new();
    if code == 0 {
        return String::new();
    }
    let mut more = 0;
    loop {
        let mut line = Output::new(library);
        // SAFETY: the pointers are valid for the call; the library only reads the object identifier.
        let (major, _) = unsafe {
            call!(library, gss_display_status(code, kind, &mut oid(KRB5), &mut more, &mut line.buffer))
        };
        if major != GSS_S_COMPLETE {
            break;
        }
        lines.push(String::from_utf8_lossy(line.bytes()).into_owned());
        if more == 0 {
            break;
        }
    }
    lines.join("; ")
}

/// The time until which something is valid: none if it has no end.
fn lifetime(seconds: OM_uint32) -> Option<Duration> {
    (seconds != GSS_C_INDEFINITE).then(|| Duration::from_secs(seconds.into()))
}

impl Name {
    /// The name of a service on a host, `nfs@HOST`.
    pub(crate) fn of_service(service: &str) -> Result<Self, Error> {
        let mut name = Self { library: gssapi()?, name: ptr::null_mut() };
        let mut text = gss_buffer_desc::borrow(service.as_bytes());
        // SAFETY: the pointers are valid for the call; the library only reads text and object identifier.
        let codes = unsafe {
            call!(name.library, gss_import_name(&mut text, &mut oid(HOST_BASED_SERVICE), &mut name.name))
        };
        match codes.0 {
            GSS_S_COMPLETE => Ok(name),
            _ => Err(status(name.library, &format!("use the service name {service}"), codes)),
        }
    }

    /// The principal, as text.
    pub(crate) fn principal(&self) -> Result<String, Error> {
        let mut text = Output::new(self.library);
        // SAFETY: the pointers are valid for the call; the name exists.
        let codes =
            unsafe { call!(self.library, gss_display_name(self.name, &mut text.buffer, ptr::null_mut())) };
        match codes.0 {
            GSS_S_COMPLETE => {
                let text = text.bytes().to_vec();
                String::from_utf8(text).map_err(|e| Error::Principal(e.to_string()))
            }
            _ => Err(status(self.library, "read the principal", codes)),
        }
    }

    /// The user of this host with this name, according to krb5.conf (`auth_to_local`).
    pub(crate) fn local_user(&self) -> Option<String> {
        let mut user = Output::new(self.library);
        // SAFETY: the pointers are valid for the call; the name exists; the library only reads the object identifier.
        let (major, _) =
            unsafe { call!(self.library, gss_localname(self.name, &mut oid(KRB5), &mut user.buffer)) };
        // Some versions count a terminating NUL.
        let user = String::from_utf8(user.bytes().to_vec()).ok().filter(|_| major == GSS_S_COMPLETE);
        user.map(|user| user.trim_end_matches('\0').to_owned())
    }
}

impl Cred {
    /// Acquires credentials of Kerberos 5. `store` says where they are (krb5 documentation, "Credential store
    /// interface"); `action` names them.
    pub(crate) fn acquire(usage: Usage, store: &[(&CStr, &CStr)], action: &str) -> Result<Self, Error> {
        let mut cred = Self { library: gssapi()?, cred: ptr::null_mut() };
        let mut mechanism = oid(KRB5);
        let mut mechanisms = gss_OID_set_desc { count: 1, elements: &mut mechanism };
        let mut elements: Vec<_> = store
            .iter()
            .map(|(key, value)| gss_key_value_element_desc { key: key.as_ptr(), value: value.as_ptr() })
            .collect();
        let store =
            gss_key_value_set_desc { count: elements.len() as OM_uint32, elements: elements.as_mut_ptr() };
        let usage = match usage {
            Usage::Initiate => GSS_C_INITIATE,
            Usage::Accept => GSS_C_ACCEPT,
        };
        // SAFETY: the pointers are valid for the call, or null where the library permits it; the library only reads the
        // mechanisms and the store.
        let codes = unsafe {
            call!(
                cred.library,
                gss_acquire_cred_from(
                    ptr::null_mut(), // Any name.
                    GSS_C_INDEFINITE,
                    &mut mechanisms,
                    usage,
                    &store,
                    &mut cred.cred,
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            )
        };
        match codes.0 {
            GSS_S_COMPLETE => Ok(cred),
            _ => Err(status(cred.library, action, codes)),
        }
    }

    /// The name, and the time for which the credentials are still valid.
    pub(crate) fn inquire(&self, action: &str) -> Result<(Name, Option<Duration>), Error> {
        let mut name = Name { library: self.library, name: ptr::null_mut() };
        let mut seconds = 0;
        // SAFETY: the pointers are valid for the call, or null where the library permits it; the credentials exist.
        let codes = unsafe {
            call!(
                self.library,
                gss_inquire_cred(self.cred, &mut name.name, &mut seconds, ptr::null_mut(), ptr::null_mut())
            )
        };
        match codes.0 {
            GSS_S_COMPLETE if name.name.is_null() => Err(Error::Library("credentials without a name")),
            GSS_S_COMPLETE => Ok((name, lifetime(seconds))),
            _ => Err(status(self.library, action, codes)),
        }
    }
}

/// The result of a step of a negotiation.
pub(crate) struct Step<T> {
    /// For the peer; empty if it needs none.
    pub(crate) token: Vec<u8>,
    /// Something if the context is established, nothing if the peer's answer is needed.
    pub(crate) result: Result<Option<T>, Error>,
}

impl SecurityContext {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self { library: gssapi()?, context: ptr::null_mut() })
    }

    /// The next step of the acceptor (`gss_accept_sec_context`). Returns the initiator's name at the end.
    pub(crate) fn accept(&mut self, cred: &Cred, token: &[u8]) -> Step<Name> {
        let mut answer = Output::new(self.library);
        let mut name = Name { library: self.library, name: ptr::null_mut() };
        let mut input = gss_buffer_desc::borrow(token);
        // SAFETY: the pointers are valid for the call, or null where the library permits it; the library only reads the
        // input. Context and credentials exist, or the context is null before the first step.
        let codes = unsafe {
            call!(
                self.library,
                gss_accept_sec_context(
                    &mut self.context,
                    cred.cred,
                    &mut input,
                    ptr::null_mut(), // No channel bindings.
                    &mut name.name,
                    ptr::null_mut(),
                    &mut answer.buffer,
                    ptr::null_mut(),
                    ptr::null_mut(),
                    ptr::null_mut(), // No delegated credentials.
                )
            )
        };
        let result = match codes.0 {
            GSS_S_COMPLETE if name.name.is_null() => Err(Error::Library("a context without an initiator")),
            GSS_S_COMPLETE => Ok(Some(name)),
            GSS_S_CONTINUE_NEEDED => Ok(None),
            _ => Err(status(self.library, "accept a security context", codes)),
        };
        Step { token: answer.bytes().to_vec(), result }
    }

    /// The next step of the initiator (`gss_init_sec_context`).
    pub(crate) fn init(&mut self, cred: &Cred, target: &Name, token: &[u8]) -> Step<()> {
        let mut answer = Output::new(self.library);
        let mut input = gss_buffer_desc::borrow(token);
        // RPCSEC_GSS numbers its messages itself: neither GSS_C_REPLAY_FLAG nor GSS_C_SEQUENCE_FLAG (RFC 2203 5.2.2).
        let flags = GSS_C_MUTUAL_FLAG | GSS_C_CONF_FLAG | GSS_C_INTEG_FLAG;
        // SAFETY: as in `accept`; the library only reads target and object identifier.
        let codes = unsafe {
            call!(
                self.library,
                gss_init_sec_context(
                    cred.cred,
                    &mut self.context,
                    target.name,
                    &mut oid(KRB5),
                    flags,
                    0,               // The default lifetime: that of the ticket.
                    ptr::null_mut(), // No channel bindings.
                    &mut input,
                    ptr::null_mut(),
                    &mut answer.buffer,
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            )
        };
        let result = match codes.0 {
            GSS_S_COMPLETE => Ok(Some(())),
            GSS_S_CONTINUE_NEEDED => Ok(None),
            _ => Err(status(self.library, "authenticate", codes)),
        };
        Step { token: answer.bytes().to_vec(), result }
    }

    /// The names of initiator and acceptor of an established context.
    pub(crate) fn names(&self) -> Result<(Name, Name), Error> {
        let mut initiator = Name { library: self.library, name: ptr::null_mut() };
        let mut acceptor = Name { library: self.library, name: ptr::null_mut() };
        // SAFETY: the pointers are valid for the call, or null where the library permits it; the context exists.
        let codes = unsafe {
            call!(
                self.library,
                gss_inquire_context(
                    self.context,
                    &mut initiator.name,
                    &mut acceptor.name,
                    ptr::null_mut(),
                    ptr::null_mut(),
                    ptr::null_mut(),
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            )
        };
        match codes.0 {
            GSS_S_COMPLETE if initiator.name.is_null() || acceptor.name.is_null() => {
                Err(Error::Library("a context without the name of a side"))
            }
            GSS_S_COMPLETE => Ok((initiator, acceptor)),
            _ => Err(status(self.library, "read the names of the security context", codes)),
        }
    }

    /// Takes the keys of an established context (`gss_krb5_export_lucid_sec_context`).
    pub(crate) fn export(mut self) -> Result<Context, Error> {
        let mut exported: *mut c_void = ptr::null_mut();
        // SAFETY: the pointers are valid for the call; the library deletes the context and sets its pointer to null.
        let codes = unsafe {
            call!(self.library, gss_krb5_export_lucid_sec_context(&mut self.context, 1, &mut exported))
        };
        if codes.0 != GSS_S_COMPLETE {
            return Err(status(self.library, "take the keys of the security context", codes));
        }
        Lucid { library: self.library, exported }.context()
    }
}

/// An exported context. The library overwrites the keys when it is released.
struct Lucid {
    library: &'static Gssapi,
    exported: *mut c_void,
}

impl Lucid {
    fn context(&self) -> Result<Context, Error> {
        // SAFETY: the library has returned version 1, for which it was asked.
        let lucid = unsafe { self.exported.cast::<gss_krb5_lucid_context_v1_t>().as_ref() };
        let lucid =
            lucid.filter(|l| l.version == 1).ok_or(Error::Library("a context of an unknown version"))?;
        if lucid.protocol != 1 {
            return Err(Error::Enctype(lucid.rfc1964_kd.ctx_key.r#type));
        }
        let acceptor_subkey = lucid.cfx_kd.have_acceptor_subkey != 0;
        let key = if acceptor_subkey { &lucid.cfx_kd.acceptor_subkey } else { &lucid.cfx_kd.ctx_key };
        let enctype = Enctype::from_number(key.r#type).ok_or(Error::Enctype(key.r#type))?;
        if key.data.is_null() {
            return Err(Error::Library("a context without a key"));
        }
        let parameters = Parameters {
            role: if lucid.initiate != 0 { Role::Initiator } else { Role::Acceptor },
            enctype,
            // SAFETY: the library states the length, and the key remains until `self` is dropped.
            key: unsafe { slice::from_raw_parts(key.data.cast(), key.length as usize) },
            acceptor_subkey,
            sequence: lucid.send_seq,
            end: Duration::from_secs(lucid.endtime.into()),
        };
        Context::new(&parameters).map_err(|_| Error::Library("a key of another length than its type"))
    }
}

impl Drop for Lucid {
    fn drop(&mut self) {
        // SAFETY: the library has created the exported context, and there is no other pointer to it.
        unsafe { call!(self.library, gss_krb5_free_lucid_sec_context(self.exported)) };
    }
}

/// The per-message functions of an established context.
#[cfg(test)]
impl SecurityContext {
    /// `gss_get_mic`.
    pub(crate) fn mic(&self, functions: &PerMessage, message: &[u8]) -> Vec<u8> {
        let mut token = Output::new(self.library);
        let mut input = gss_buffer_desc::borrow(message);
        // SAFETY: the pointers are valid for the call; the context is established; the library only reads the input.
        let codes = unsafe { call!(functions, gss_get_mic(self.context, 0, &mut input, &mut token.buffer)) };
        assert_eq!(codes.0, GSS_S_COMPLETE);
        token.bytes().to_vec()
    }

    /// `gss_verify_mic`.
    pub(crate) fn verify(&self, functions: &PerMessage, message: &[u8], token: &[u8]) -> bool {
        let [mut message, mut token] = [message, token].map(gss_buffer_desc::borrow);
        // SAFETY: as in `mic`; the last pointer may be null.
        let codes = unsafe {
            call!(functions, gss_verify_mic(self.context, &mut message, &mut token, ptr::null_mut()))
        };
        codes.0 == GSS_S_COMPLETE
    }

    /// `gss_wrap` with confidentiality.
    pub(crate) fn wrap(&self, functions: &PerMessage, message: &[u8]) -> Vec<u8> {
        let mut token = Output::new(self.library);
        let mut input = gss_buffer_desc::borrow(message);
        let mut confidential = 0;
        // SAFETY: as in `mic`.
        let codes = unsafe {
            call!(functions, gss_wrap(self.context, 1, 0, &mut input, &mut confidential, &mut token.buffer))
        };
        assert_eq!((codes.0, confidential), (GSS_S_COMPLETE, 1));
        token.bytes().to_vec()
    }

    /// `gss_unwrap`.
    pub(crate) fn unwrap(&self, functions: &PerMessage, token: &[u8]) -> Option<Vec<u8>> {
        let mut message = Output::new(self.library);
        let mut input = gss_buffer_desc::borrow(token);
        let mut confidential = 0;
        // SAFETY: as in `mic`; the last pointer may be null.
        let codes = unsafe {
            call!(
                functions,
                gss_unwrap(self.context, &mut input, &mut message.buffer, &mut confidential, ptr::null_mut())
            )
        };
        (codes.0 == GSS_S_COMPLETE && confidential == 1).then(|| message.bytes().to_vec())
    }
}
