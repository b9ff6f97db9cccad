//! `nfs_opnum4` (RFC 8881 section 16, RFC 7862 section 14, RFC 8276 section 8.4).

use crate::schema::xdr_enum;

xdr_enum! {
    /// The operations of COMPOUND. `Display` gives the name in the RFCs.
    pub enum Operation {
        /// ACCESS.
        Access = 3,
        /// CLOSE.
        Close = 4,
        /// COMMIT.
        Commit = 5,
        /// CREATE.
        Create = 6,
        /// DELEGPURGE.
        Delegpurge = 7,
        /// DELEGRETURN.
        Delegreturn = 8,
        /// GETATTR.
        Getattr = 9,
        /// GETFH.
        Getfh = 10,
        /// LINK.
        Link = 11,
        /// LOCK.
        Lock = 12,
        /// LOCKT.
        Lockt = 13,
        /// LOCKU.
        Locku = 14,
        /// LOOKUP.
        Lookup = 15,
        /// LOOKUPP.
        Lookupp = 16,
        /// NVERIFY.
        Nverify = 17,
        /// OPEN.
        Open = 18,
        /// OPENATTR.
        Openattr = 19,
        /// OPEN_CONFIRM.
        OpenConfirm = 20,
        /// OPEN_DOWNGRADE.
        OpenDowngrade = 21,
        /// PUTFH.
        Putfh = 22,
        /// PUTPUBFH.
        Putpubfh = 23,
        /// PUTROOTFH.
        Putrootfh = 24,
        /// READ.
        Read = 25,
        /// READDIR.
        Readdir = 26,
        /// READLINK.
        Readlink = 27,
        /// REMOVE.
        Remove = 28,
        /// RENAME.
        Rename = 29,
        /// RENEW.
        Renew = 30,
        /// RESTOREFH.
        RestoreFh = 31,
        /// SAVEFH.
        Savefh = 32,
        /// SECINFO.
        Secinfo = 33,
        /// SETATTR.
        Setattr = 34,
        /// SETCLIENTID.
        Setclientid = 35,
        /// SETCLIENTID_CONFIRM.
        SetclientidConfirm = 36,
        /// VERIFY.
        Verify = 37,
        /// WRITE.
        Write = 38,
        /// RELEASE_LOCKOWNER.
        ReleaseLockowner = 39,
        /// BACKCHANNEL_CTL.
        BackchannelCtl = 40,
        /// BIND_CONN_TO_SESSION.
        BindConnToSession = 41,
        /// EXCHANGE_ID.
        ExchangeId = 42,
        /// CREATE_SESSION.
        CreateSession = 43,
        /// DESTROY_SESSION.
        DestroySession = 44,
        /// FREE_STATEID.
        FreeStateid = 45,
        /// GET_DIR_DELEGATION.
        GetDirDelegation = 46,
        /// GETDEVICEINFO.
        Getdeviceinfo = 47,
        /// GETDEVICELIST.
        Getdevicelist = 48,
        /// LAYOUTCOMMIT.
        Layoutcommit = 49,
        /// LAYOUTGET.
        Layoutget = 50,
        /// LAYOUTRETURN.
        Layoutreturn = 51,
        /// SECINFO_NO_NAME.
        SecinfoNoName = 52,
        /// SEQUENCE.
        Sequence = 53,
        /// SET_SSV.
        SetSsv = 54,
        /// TEST_STATEID.
        TestStateid = 55,
        /// WANT_DELEGATION.
        WantDelegation = 56,
        /// DESTROY_CLIENTID.
        DestroyClientid = 57,
        /// RECLAIM_COMPLETE.
        ReclaimComplete = 58,
        /// ALLOCATE.
        Allocate = 59,
        /// COPY.
        Copy = 60,
        /// COPY_NOTIFY.
        CopyNotify = 61,
        /// DEALLOCATE.
        Deallocate = 62,
        /// IO_ADVISE.
        IoAdvise = 63,
        /// LAYOUTERROR.
        Layouterror = 64,
        /// LAYOUTSTATS.
        Layoutstats = 65,
        /// OFFLOAD_CANCEL.
        OffloadCancel = 66,
        /// OFFLOAD_STATUS.
        OffloadStatus = 67,
        /// READ_PLUS.
        ReadPlus = 68,
        /// SEEK.
        Seek = 69,
        /// WRITE_SAME.
        WriteSame = 70,
        /// CLONE.
        Clone = 71,
        /// GETXATTR.
        Getxattr = 72,
        /// SETXATTR.
        Setxattr = 73,
        /// LISTXATTRS.
        Listxattrs = 74,
        /// REMOVEXATTR.
        Removexattr = 75,
    }
}

impl Operation {
    /// Name in the RFCs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Access => "ACCESS",
            Self::Close => "CLOSE",
            Self::Commit => "COMMIT",
            Self::Create => "CREATE",
            Self::Delegpurge => "DELEGPURGE",
            Self::Delegreturn => "DELEGRETURN",
            Self::Getattr => "GETATTR",
            Self::Getfh => "GETFH",
            Self::Link => "LINK",
            Self::Lock => "LOCK",
            Self::Lockt => "LOCKT",
            Self::Locku => "LOCKU",
            Self::Lookup => "LOOKUP",
            Self::Lookupp => "LOOKUPP",
            Self::Nverify => "NVERIFY",
            Self::Open => "OPEN",
            Self::Openattr => "OPENATTR",
            Self::OpenConfirm => "OPEN_CONFIRM",
            Self::OpenDowngrade => "OPEN_DOWNGRADE",
            Self::Putfh => "PUTFH",
            Self::Putpubfh => "PUTPUBFH",
            Self::Putrootfh => "PUTROOTFH",
            Self::Read => "READ",
            Self::Readdir => "READDIR",
            Self::Readlink => "READLINK",
            Self::Remove => "REMOVE",
            Self::Rename => "RENAME",
            Self::Renew => "RENEW",
            Self::RestoreFh => "RESTOREFH",
            Self::Savefh => "SAVEFH",
            Self::Secinfo => "SECINFO",
            Self::Setattr => "SETATTR",
            Self::Setclientid => "SETCLIENTID",
            Self::SetclientidConfirm => "SETCLIENTID_CONFIRM",
            Self::Verify => "VERIFY",
            Self::Write => "WRITE",
            Self::ReleaseLockowner => "RELEASE_LOCKOWNER",
            Self::BackchannelCtl => "BACKCHANNEL_CTL",
            Self::BindConnToSession => "BIND_CONN_TO_SESSION",
            Self::ExchangeId => "EXCHANGE_ID",
            Self::CreateSession => "CREATE_SESSION",
            Self::DestroySession => "DESTROY_SESSION",
            Self::FreeStateid => "FREE_STATEID",
            Self::GetDirDelegation => "GET_DIR_DELEGATION",
            Self::Getdeviceinfo => "GETDEVICEINFO",
            Self::Getdevicelist => "GETDEVICELIST",
            Self::Layoutcommit => "LAYOUTCOMMIT",
            Self::Layoutget => "LAYOUTGET",
            Self::Layoutreturn => "LAYOUTRETURN",
            Self::SecinfoNoName => "SECINFO_NO_NAME",
            Self::Sequence => "SEQUENCE",
            Self::SetSsv => "SET_SSV",
            Self::TestStateid => "TEST_STATEID",
            Self::WantDelegation => "WANT_DELEGATION",
            Self::DestroyClientid => "DESTROY_CLIENTID",
            Self::ReclaimComplete => "RECLAIM_COMPLETE",
            Self::Allocate => "ALLOCATE",
            Self::Copy => "COPY",
            Self::CopyNotify => "COPY_NOTIFY",
            Self::Deallocate => "DEALLOCATE",
            Self::IoAdvise => "IO_ADVISE",
            Self::Layouterror => "LAYOUTERROR",
            Self::Layoutstats => "LAYOUTSTATS",
            Self::OffloadCancel => "OFFLOAD_CANCEL",
            Self::OffloadStatus => "OFFLOAD_STATUS",
            Self::ReadPlus => "READ_PLUS",
            Self::Seek => "SEEK",
            Self::WriteSame => "WRITE_SAME",
            Self::Clone => "CLONE",
            Self::Getxattr => "GETXATTR",
            Self::Setxattr => "SETXATTR",
            Self::Listxattrs => "LISTXATTRS",
            Self::Removexattr => "REMOVEXATTR",
        }
    }

    /// The lowest minor version that has the operation (RFC 7862 section 14.1; RFC 8276 extends version 2).
    pub const fn minor_version(self) -> u32 {
        match self.number() {
            ..=39 => 0,
            40..=58 => 1,
            _ => 2,
        }
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
