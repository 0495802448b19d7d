{{ timeline(source_model='sts_account', src_pk='hk_account', src_hashdiff='hd_status') }}
