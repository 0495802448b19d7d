{{ timeline(source_model='sts_transaction_item', src_pk='hk_transaction_item', src_hashdiff='hd_status') }}
