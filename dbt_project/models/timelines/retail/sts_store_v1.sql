{{ timeline(source_model='sts_store', src_pk='hk_store', src_hashdiff='hd_status') }}
