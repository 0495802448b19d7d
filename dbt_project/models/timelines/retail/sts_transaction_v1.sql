{{ timeline(source_model='sts_transaction', src_pk='hk_transaction', src_hashdiff='hd_status') }}
