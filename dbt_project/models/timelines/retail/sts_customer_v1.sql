{{ timeline(source_model='sts_customer', src_pk='hk_customer', src_hashdiff='hd_status') }}
