{{ timeline(source_model='sts_user', src_pk='hk_user', src_hashdiff='hd_status') }}
